//! Stories about what commands mean. Each runs on two machines at once, of which only one is asked for answers; after
//! each script both must hold the same bytes (see `world`).

mod alarms;
mod compares;
mod large;
mod machine;
mod model;
mod property;
mod puts;
mod ranges;
mod script;
mod streams;
mod txns;
mod validation;
mod world;

use world::World;

/// Plays `story` and compares what the last request of `request` answers.
fn check(story: &str, request: &str, answer: &str) {
    let mut world = World::new();
    world.play(story);
    assert_eq!(world.play(request), answer, "\n  story:   {story}\n  request: {request}");
}

/// The same for several requests after one story; each sees what those before it did.
fn check_all(story: &str, requests: &[(&str, &str)]) {
    let mut world = World::new();
    world.play(story);
    for (request, answer) in requests {
        assert_eq!(world.play(request), *answer, "\n  story:   {story}\n  request: {request}");
    }
}
