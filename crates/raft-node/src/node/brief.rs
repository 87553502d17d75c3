//! Decides which entries the driver applies itself, in place of the apply thread: the brief ones.
//!
//! To wake the apply thread and to be woken by it takes 40 to 80 µs; to apply a put takes 4 µs. But a driver
//! that applies sends no heartbeat meanwhile. So an entry is brief if applying it takes microseconds for
//! certain:
//!
//! * few commands and bytes, and no change of the members;
//! * each command names a few keys, and reads stored values only if those are in memory;
//! * the machine's store has room for the entry, so that its end does not wait.
//!
//! The machine says what a command costs and in which state its store is. Every limit is here. That a brief
//! entry is the next one, and that no other thread applies, is checked where it is applied.

use base::Cost;

use crate::StateMachine;
use crate::wire::Batch;

/// Jobs of a turn that are looked at: an entry and its readers.
const JOBS_MAX: usize = 2;
/// Commands and bytes of an entry: about as many as are applied in the time that a thread takes to wake up.
const COMMANDS_MAX: usize = 4;
const BYTES_MAX: usize = 16 << 10;
/// Keys that a command names, in both branches of its transactions.
const KEYS_MAX: usize = 16;
/// Room in the store that is enough for any brief entry: its bytes, and what records take besides.
const ROOM_BYTES: usize = 64 << 10;

/// Carries out the jobs of a turn that are brief, and returns those for the apply thread. `apply` gives back
/// a job that is not brief; the jobs after it wait with it, so that the order stays.
pub fn apply_brief_first<J, E>(
    jobs: Vec<J>,
    mut apply: impl FnMut(J) -> Result<Option<J>, E>,
) -> Result<Vec<J>, E> {
    let mut rest = Vec::new();
    let are_few = jobs.len() <= JOBS_MAX;
    for job in jobs {
        if are_few && rest.is_empty() {
            rest.extend(apply(job)?);
        } else {
            rest.push(job);
        }
    }
    Ok(rest)
}

/// Whether an entry with this batch is brief for `machine`.
pub(super) fn is_brief(batch: &Batch, machine: &mut impl StateMachine) -> bool {
    if batch.is_change || batch.count > COMMANDS_MAX || batch.bytes() > BYTES_MAX {
        return false;
    }
    if !machine.has_room(ROOM_BYTES) {
        return false;
    }
    let values_are_near = machine.values_are_near();
    let is_small = |cost: Cost| cost.keys <= KEYS_MAX && (values_are_near || !cost.reads_values);
    let commands = batch.commands();
    commands.is_ok_and(|commands| commands.iter().all(|command| machine.cost(&command).is_some_and(is_small)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::{BatchBuilder, BatchId};
    use crate::{Answer, Fatal, LogPosition};

    /// Commands say what they cost: keys, and 128 if a value is read; 127 for a cost without a bound.
    struct Machine {
        room: usize,
        values_are_near: bool,
    }

    impl StateMachine for Machine {
        type Outcome = ();

        fn applied(&self) -> LogPosition {
            LogPosition::default()
        }

        fn apply(&mut self, _: LogPosition, _: &Bytes, _: Answer) -> Result<Option<()>, Fatal> {
            unreachable!("only asked")
        }

        fn end_entry(&mut self, _: LogPosition) -> Result<(), Fatal> {
            unreachable!("only asked")
        }

        fn cost(&mut self, command: &Bytes) -> Option<Cost> {
            let keys = command[0] & 0x7f;
            (keys < 127).then_some(Cost { keys: keys.into(), reads_values: command[0] >= 128 })
        }

        fn has_room(&self, bytes: usize) -> bool {
            bytes <= self.room
        }

        fn values_are_near(&self) -> bool {
            self.values_are_near
        }

        fn install(&mut self, _: LogPosition) -> Result<(), Fatal> {
            unreachable!("only asked")
        }
    }

    /// Commands, room and whether values are near, whether the entry is brief.
    type Case<'a> = (&'a [&'a [u8]], (usize, bool), bool);

    #[test]
    fn an_entry_is_brief_if_it_costs_little_and_cannot_wait() {
        let (near, far) = ((ROOM_BYTES, true), (ROOM_BYTES, false));
        let cases: [Case<'_>; 10] = [
            (&[&[1]], far, true),
            (&[&[1][..]; 4], far, true),
            (&[&[1][..]; 5], far, false),
            (&[&[16]], far, true),
            (&[&[1], &[17]], far, false),
            (&[&[127]], near, false),
            (&[&[1], &[128 + 1]], near, true),
            (&[&[1], &[128 + 1]], far, false),
            (&[&[1; BYTES_MAX + 1]], near, false),
            (&[&[1]], (ROOM_BYTES - 1, true), false),
        ];
        for (commands, (room, values_are_near), expected) in cases {
            let mut builder = BatchBuilder::new(BatchId { proposer: 1, nonce: 1, sequence: 1 }, 0);
            commands.iter().for_each(|command| builder.push(command));
            let batch = Batch::parse(&builder.finish()).unwrap();
            let brief = is_brief(&batch, &mut Machine { room, values_are_near });
            assert_eq!(brief, expected, "{} commands, first byte {}", commands.len(), commands[0][0]);
        }
    }
}
