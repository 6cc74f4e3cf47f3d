//! Secrets are wiped from memory before it is given back, and never printed.

use firn_format::*;
use firn_seal::*;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

/// No honest byte string holds this; every secret of the test does.
const MARK: [u8; 16] = *b"\xd1SECRET-BYTES\xd2\xd3\xd4";

static LEAKED_BLOCKS: AtomicUsize = AtomicUsize::new(0);
static FREED_BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// Looks into every block that is given back.
struct Inspecting;

#[global_allocator]
static INSPECTING: Inspecting = Inspecting;

// SAFETY: every call is passed on to the system's allocator; blocks are only read, before they are freed.
unsafe impl GlobalAlloc for Inspecting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`. Zeroed, so that all of a block may be read.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is `layout.size()` bytes long, initialised when it was allocated, and still the caller's.
        let content = unsafe { std::slice::from_raw_parts(block, layout.size()) };
        FREED_BLOCKS.fetch_add(1, Ordering::Relaxed);
        let words = b"abandon abandon abandon";
        if content.windows(MARK.len()).any(|window| window == MARK)
            || content.windows(words.len()).any(|window| window == words)
        {
            LEAKED_BLOCKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

fn marked() -> [u8; 32] {
    let mut secret = [0; 32];
    secret[..16].copy_from_slice(&MARK);
    secret[16..].copy_from_slice(&MARK);
    secret
}

/// Blocks that held a secret when they were freed by `work`.
fn leaks_of(work: impl FnOnce()) -> usize {
    let before = LEAKED_BLOCKS.load(Ordering::Relaxed);
    work();
    LEAKED_BLOCKS.load(Ordering::Relaxed) - before
}

/// One test, since the allocator watches the whole process.
#[test]
fn no_secret_is_left_in_freed_memory() {
    // The watch works: an ordinary vector does leak.
    assert_eq!(leaks_of(|| drop(marked().to_vec())), 1);
    assert_eq!(leaks_of(|| drop("abandon ".repeat(24))), 1);
    assert!(FREED_BLOCKS.load(Ordering::Relaxed) > 0);

    assert_eq!(
        leaks_of(|| drop(EpochKey::from_bytes(marked()).clone())),
        0,
        "epoch key"
    );
    assert_eq!(
        leaks_of(|| drop(RecoveryPhrase::from_entropy(marked()).clone())),
        0,
        "phrase"
    );
    assert_eq!(
        leaks_of(|| drop(TenantSigningKey::from_seed(marked()).clone())),
        0,
        "signing key"
    );
    let recipient = || RecipientSecret::from_bytes(&marked()).unwrap();
    assert_eq!(leaks_of(|| drop(recipient().clone())), 0, "recipient secret");
    assert_eq!(
        leaks_of(|| drop(Box::new(recipient().to_bytes()))),
        0,
        "its bytes"
    );

    let phrase = || RecoveryPhrase::from_entropy([0; 32]);
    assert_eq!(leaks_of(|| drop(phrase().expose_words())), 0, "words");
    assert_eq!(
        leaks_of(|| drop(RecoveryPhrase::parse(&phrase().expose_words()))),
        0,
        "parsed words"
    );

    // A whole life: made, wrapped, opened, rotated, used. Every epoch key is marked; so is the recipient's secret.
    let life = || {
        let signer = phrase().signing_key();
        let recipients = vec![Recipient {
            name: "recovery".to_owned(),
            kind: RecipientKind::Recovery,
            public: recipient().public(),
        }];
        // Envelopes mix the entropy with more; only the keys are taken from it as they are.
        let mut entropy = |bytes: &mut [u8]| bytes.copy_from_slice(&marked()[..bytes.len()]);
        let (ring, keys) = KeyRing::create(
            FamilyId([1; 16]),
            VolumeId([1; 16]),
            recipients,
            &signer,
            &mut entropy,
        )
        .unwrap();
        let ring = ring.verify(&signer.public()).unwrap();
        let (next, rotated) = ring.rotate(&keys, &signer, &mut entropy).unwrap();
        let opened = next.verify(&signer.public()).unwrap().open(&recipient()).unwrap();
        let context = RecordContext::journal(VolumeId([1; 16]), WriterId(1), 1);
        let sealer = RecordSealer::new(&opened, [1; 32], context);
        let sealed = sealer.seal(0, &[b"record"]).unwrap();
        let opener = RecordOpener::of_journal(&rotated, &sealer.journal_header()).unwrap();
        assert_eq!(&opener.open(0, sealed).unwrap()[..], b"record");
    };
    assert_eq!(leaks_of(life), 0, "key ring");
}

#[test]
fn no_secret_is_printed() {
    let secret = marked();
    let shown = [
        format!("{:?}", EpochKey::from_bytes(secret)),
        format!("{:?}", RecoveryPhrase::from_entropy(secret)),
        format!("{:?}", TenantSigningKey::from_seed(secret)),
        format!("{:?}", RecipientSecret::from_bytes(&secret).unwrap()),
        format!(
            "{:?}",
            Keys::new(
                FamilyId([1; 16]),
                BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes(secret))])
            )
        ),
    ];
    for text in shown {
        assert!(text.contains("secret") || text.ends_with(", .. }"), "{text}");
        // Neither as hex nor as a list of numbers.
        assert!(
            !text.contains("5345435245542d") && !text.contains("83, 69, 67"),
            "{text}"
        );
    }
}
