//! Planted bugs: guards that a test takes out, one at a time, to see whether the tests would notice.
//!
//! Code asks `firn_env::planted!("crate.name_of_the_bug")` where the guard stands. Without the cargo feature `mutants` that is
//! the constant `false`: neither the broken branch nor the name is in the build, and nothing that ships has the feature
//! (`scripts/check-shipped` looks for the names in the programs). With it, the choice belongs to the thread, which is the world of
//! one simulation: all machines of a simulation run on one thread. A program of threads, that a test starts, plants one for all of them
//! ([`plant_everywhere`]).

#[cfg(feature = "mutants")]
use std::{cell::RefCell, sync::OnceLock};

/// Whether the bug of this name is planted on this thread; the constant `false` in a build without the feature `mutants`.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        $crate::mutants::is_planted($name)
    };
}

/// Whether the bug of this name is planted on this thread; the constant `false` in a build without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! planted {
    ($name:literal) => {
        $crate::mutants::never()
    };
}

/// What [`planted!`](crate::planted) is in what ships.
#[doc(hidden)]
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn never() -> bool {
    false
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLANTED: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[cfg(feature = "mutants")]
static EVERYWHERE: OnceLock<String> = OnceLock::new();

/// Plants `bug` on every thread of this process until it ends, beside what a thread has planted. Of several calls the first counts.
#[cfg(feature = "mutants")]
pub fn plant_everywhere(bug: &str) {
    let _first = EVERYWHERE.set(bug.to_owned());
}

/// Takes the bug back when the work ends, also by a panic.
#[cfg(feature = "mutants")]
struct Replanted(Option<String>);

#[cfg(feature = "mutants")]
impl Drop for Replanted {
    fn drop(&mut self) {
        PLANTED.set(self.0.take());
    }
}

/// Does the work with `bug` planted in all that runs on this thread, or with none.
///
/// # Panics
/// If there is one to plant and this build has none.
pub fn planting<T>(bug: Option<&str>, work: impl FnOnce() -> T) -> T {
    #[cfg(feature = "mutants")]
    let _before = Replanted(PLANTED.replace(bug.map(str::to_owned)));
    #[cfg(not(feature = "mutants"))]
    assert_eq!(
        bug, None,
        "a build without the feature `mutants` has no planted bugs"
    );
    work()
}

/// Whether the bug of this name is planted on this thread, or on all.
// A call of its own: the name would otherwise be compiled into comparisons, and nobody would find it in a program.
#[cfg(feature = "mutants")]
#[inline(never)]
pub fn is_planted(name: &str) -> bool {
    EVERYWHERE.get().is_some_and(|planted| planted == name)
        || PLANTED.with_borrow(|planted| planted.as_deref() == Some(name))
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::{plant_everywhere, planting};

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "another thread is what the test is about"
    )]
    fn a_bug_that_is_planted_everywhere_is_on_other_threads_and_takes_none_of_theirs_away() {
        plant_everywhere("env.everywhere");
        plant_everywhere("env.too_late");
        let elsewhere = std::thread::spawn(|| {
            planting(Some("env.of_this_thread"), || {
                (planted!("env.everywhere"), planted!("env.of_this_thread"))
            })
        });
        assert_eq!(elsewhere.join().expect("it ends"), (true, true));
        assert!(!planted!("env.too_late"));
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "another thread is what the test is about"
    )]
    fn a_bug_is_planted_by_its_name_while_the_work_lasts_and_on_this_thread_only() {
        assert!(!planted!("env.example"));
        planting(Some("env.example"), || {
            assert!(planted!("env.example") && !planted!("env.other"));
            let elsewhere = std::thread::spawn(|| planted!("env.example"));
            assert!(!elsewhere.join().expect("it ends"));
            assert!(!planting(None, || planted!("env.example")), "a sound one within");
            assert!(planted!("env.example"));
        });
        assert!(!planted!("env.example"));
        let work = || planting(Some("env.example"), || panic!("noticed"));
        std::panic::catch_unwind(work).expect_err("it panics");
        assert!(!planted!("env.example"));
    }
}
