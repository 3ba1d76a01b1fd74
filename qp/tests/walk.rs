//! Random walks through the verbs: objects of every kind are made, used, changed and ended in any order while
//! traffic flows between two NICs over links with faults. Whatever the order, nothing panics, a work request completes
//! once or not at all, errors of busy objects are true, and memory that nobody was given stays as it was.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "walk/changes.rs"]
mod changes;
#[path = "walk/host.rs"]
mod host;
#[path = "walk/model.rs"]
mod model;
#[path = "walk/posts.rs"]
mod posts;
#[path = "walk/world.rs"]
mod world;

use world::World;

/// Steps of a walk.
const STEPS: u32 = 600;

fn walk(seeds: core::ops::Range<u64>, hostile: bool) {
    let (count, mut successes) = (seeds.end - seeds.start, 0);
    for seed in seeds {
        println!("seed {seed}");
        let mut world = World::new(seed, hostile);
        for _ in 0..STEPS {
            world.step();
        }
        successes += world.finish();
    }
    assert!(successes > 10 * count, "{successes} work requests of {count} walks have succeeded");
}

/// How many walks, from the environment where someone wants more.
fn walks() -> u64 {
    std::env::var("FERROCE_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[test]
fn verbs_in_any_order_on_links_with_faults() {
    walk(0..walks(), false);
}

/// Some packets are changed on the way, with a right ICRC.
#[test]
fn verbs_in_any_order_with_peers_that_lie() {
    walk(1_000_000..1_000_000 + walks(), true);
}
