//! Scripts of commands. Each runs on two machines, only one of which returns outcomes. After each
//! script both must hold the same bytes (see `world`).

mod alarms;
mod compares;
mod large;
mod machine;
mod model;
mod property;
mod script;
mod streams;
pub(crate) mod totality;
mod validation;
mod world;

use std::path::Path;

pub(crate) use world::World;

/// Golden scripts, in `tests/scripts`. `script` describes the commands; `new` creates new machines.
#[test]
fn scripts_give_their_output() {
    testkit::golden::run_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), || {
        let mut world = World::new();
        move |line| match line {
            "new" => {
                world = World::new();
                String::new()
            }
            steps => world.play(steps),
        }
    });
}
