//! Standard output and error of a program whose reader may go away: `println!` and its kin without their panic.
//!
//! `firn-edge recover | head` closes the pipe after ten lines; the standard library's macros would end the program there, in the
//! middle of its work. These go on without a reader. They have the standard library's names, so that a program's file needs one
//! `use` and no call can be forgotten. Any other failure to write (a full disk behind a redirection) is remembered for
//! [`output_failure`], which a program asks before it says that it succeeded.

use std::{
    fmt,
    io::{self, Write},
    sync::Mutex,
};

/// The first failure to write to standard output that was not its reader's going away.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes to standard output; a reader that went away is no failure.
#[doc(hidden)]
pub fn write_output(text: fmt::Arguments<'_>) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_fmt(text).and_then(|()| out.flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILURE
            .lock()
            .expect("no panic under this lock")
            .get_or_insert(error);
    }
}

/// Writes to standard error; if nobody takes it there is nobody to tell.
#[doc(hidden)]
pub fn write_error(text: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Why something that was printed is not where it was to go, if so. Asked once, at the end of a program.
pub fn output_failure() -> Option<io::Error> {
    FAILURE.lock().expect("no panic under this lock").take()
}

/// Whether a log on standard error may have colours: only a terminal, and only if `NO_COLOR` is not set
/// (<https://no-color.org>).
pub fn log_has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::IsTerminal::is_terminal(&io::stderr())
}

/// [`std::println`] that does not panic when nobody reads.
#[macro_export]
macro_rules! println {
    () => { $crate::terminal::write_output(::core::format_args!("\n")) };
    ($($text:tt)*) => {
        $crate::terminal::write_output(::core::format_args!("{}\n", ::core::format_args!($($text)*)))
    };
}

/// [`std::print`] that does not panic when nobody reads.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::terminal::write_output(::core::format_args!($($text)*)) };
}

/// [`std::eprintln`] that does not panic when nobody reads.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::terminal::write_error(::core::format_args!("{}\n", ::core::format_args!($($text)*)))
    };
}
