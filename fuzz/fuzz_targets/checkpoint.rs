//! Any plain section with any children is one checkpoint or none; what is accepted encodes to the same children.
//!
//! Input: a count, as many child slots (255 stands for that of the manifest), then the plain section. And the same bytes as a whole object.
#![no_main]

use bytes::Bytes;
use firn_format::{Checkpoint, Child, Location, Pointer, Uid, decode_object};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(fetched) = decode_object(Bytes::copy_from_slice(data)) {
        let uid = fetched.uid();
        let verified = fetched.verify(&uid, None).expect("it has its own uid");
        let _ = Checkpoint::from_verified(&verified);
    }

    let Some((&count, rest)) = data.split_first() else {
        return;
    };
    let (slots, plain) = rest.split_at(usize::from(count).min(rest.len()));
    let mut slots: Vec<u16> = slots
        .iter()
        .map(|slot| match *slot {
            u8::MAX => u16::MAX,
            slot => u16::from(slot),
        })
        .collect();
    slots.sort_unstable();
    slots.dedup();
    let children: Vec<Child> = slots
        .into_iter()
        .map(|slot| Child {
            slot,
            pointer: Pointer {
                uid: Uid([slot as u8; 32]),
                location: Location::UNKNOWN,
            },
        })
        .collect();
    if let Ok(checkpoint) = Checkpoint::from_plain_and_children(plain, &children) {
        let (plain_again, children_again) = checkpoint.to_plain_and_children();
        assert_eq!(children_again, children);
        let again = Checkpoint::from_plain_and_children(&plain_again, &children_again);
        assert_eq!(again, Ok(checkpoint));
    }
});
