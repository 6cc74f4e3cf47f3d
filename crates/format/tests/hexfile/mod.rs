//! Golden vectors as text: bytes in hexadecimal, 16 a line after their offset; lines with `#` say what they are.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{fmt::Write, fs, path::Path};

/// Reads a vector.
pub fn read(path: &Path) -> Vec<u8> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (offset, digits) = line.split_once(": ").expect("each line is an offset and bytes");
        assert_eq!(
            usize::from_str_radix(offset, 16).ok(),
            Some(bytes.len()),
            "{}",
            path.display()
        );
        let pairs = digits
            .split(' ')
            .map(|pair| u8::from_str_radix(pair, 16).expect("two hexadecimal digits"));
        bytes.extend(pairs);
    }
    bytes
}

/// Writes a vector.
pub fn write(path: &Path, title: &str, bytes: &[u8]) {
    let mut text = format!("# {title}\n");
    for (number, line) in bytes.chunks(16).enumerate() {
        let digits: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{:06x}: {}", number * 16, digits.join(" ")).expect("a string takes any text");
    }
    fs::create_dir_all(path.parent().expect("a vector lies in a folder")).expect("the folder can be made");
    fs::write(path, text).expect("the vector can be written");
}
