//! Alarms in the store. `tests/scripts` has their requests.

use super::World;
use crate::EtcdMachine;

#[test]
fn readers_see_the_alarms_in_the_store() {
    let mut world = World::new();
    world.play("alarm on corrupt 18; alarm on nospace 4");
    let seen = |machine: &EtcdMachine| {
        let alarms = crate::active_alarms(machine.store()).unwrap();
        alarms.iter().map(|alarm| (alarm.alarm, alarm.member_id)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&world.asked), [(1, 4), (2, 18)]);
    assert_eq!(seen(&world.asked), seen(&world.silent));
}
