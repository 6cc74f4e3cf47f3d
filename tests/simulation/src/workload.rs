//! Client workload: a random mix of calls on files they know, and on some they do not.

use crate::operation::{Data, Operation};
use bytes::Bytes;
use firn_env::sim::Seeded;
use firn_vfs::{
    Acl, AclEntry, AclTag, Caller, CreateMode, Credentials, Durability, FileHandle, FileKind, Name,
    RequestId, SetAttributes, SetTime, Stability, Timestamp, XattrMode,
};

/// What a history is mostly about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// A little of everything.
    Mixed,
    /// Two directories that grow and shrink by many names.
    Names,
    /// Few files, much data, over many blocks.
    Data,
    /// Directories moved about, links, removals.
    Moves,
    /// Small writes, each made stable.
    Syncs,
}

/// A file that clients know, as they last saw it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its handle.
    pub handle: FileHandle,
    /// Its kind.
    pub kind: FileKind,
}

/// One history's habits.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The theme.
    pub theme: Theme,
    /// Different names in a directory.
    pub names: u64,
    /// Bytes at the end of each name, to fill directory pages.
    pub name_padding: usize,
    /// Largest offset of a write.
    pub reach_bytes: u64,
    /// Largest write.
    pub write_bytes: u64,
}

impl Workload {
    /// Draws one.
    pub fn draw(largest_write: u64, random: &mut Seeded) -> Self {
        let theme = *random.pick(&[
            Theme::Mixed,
            Theme::Mixed,
            Theme::Names,
            Theme::Data,
            Theme::Moves,
            Theme::Syncs,
        ]);
        Self {
            theme,
            names: match theme {
                Theme::Names => random.between(100, 600),
                Theme::Data | Theme::Syncs => random.between(3, 10),
                Theme::Mixed | Theme::Moves => random.between(4, 40),
            },
            name_padding: match theme {
                Theme::Names => random.between(20, 200) as usize,
                Theme::Mixed | Theme::Data | Theme::Moves | Theme::Syncs => random.below(30) as usize,
            },
            reach_bytes: *random.pick(&[2_000, 40_000, 300_000, 3_000_000]),
            write_bytes: largest_write.min(*random.pick(&[600, 5_000, 40_000])),
        }
    }

    /// The next call of a client that knows these files (the first is the root directory).
    pub fn next(&self, random: &mut Seeded, known: &[Known], retained: &[FileHandle]) -> Operation {
        let draw = random.below(100);
        let names = match self.theme {
            Theme::Mixed => 40,
            Theme::Names => 75,
            Theme::Data | Theme::Syncs => 15,
            Theme::Moves => 70,
        };
        if draw < names {
            self.change_names(random, known)
        } else if draw < 85 {
            self.change_file(random, known, retained)
        } else {
            self.query(random, known)
        }
    }

    fn name(&self, random: &mut Seeded) -> Name {
        if random.chance(1, 200) {
            // The longest, and bytes that are no text.
            let mut bytes = vec![b'n'; Name::MAX_BYTES];
            bytes[0] = 0xff;
            bytes[1] = random.between(1, 3) as u8;
            return Name::new(bytes).expect("no slash, no zero");
        }
        let number = random.below(self.names);
        let name = format!("{number}{}", "-".repeat(self.name_padding));
        Name::new(name.into_bytes()).expect("short, no slash")
    }

    fn directory(&self, random: &mut Seeded, known: &[Known]) -> FileHandle {
        let directories: Vec<&Known> = known
            .iter()
            .filter(|file| file.kind == FileKind::Directory)
            .collect();
        // Names gather in the oldest two.
        if self.theme == Theme::Names && random.chance(9, 10) {
            return directories[random.index(directories.len().min(2))].handle;
        }
        if random.chance(1, 4) || directories.is_empty() {
            return known[0].handle;
        }
        random.pick(&directories).handle
    }

    fn file(&self, random: &mut Seeded, known: &[Known]) -> FileHandle {
        let files: Vec<&Known> = known
            .iter()
            .filter(|file| file.kind == FileKind::Regular)
            .collect();
        if files.is_empty() || random.chance(1, 50) {
            return random.pick(known).handle;
        }
        random.pick(&files).handle
    }

    fn change_names(&self, random: &mut Seeded, known: &[Known]) -> Operation {
        let directory = self.directory(random, known);
        let name = self.name(random);
        let (create, moves) = match self.theme {
            Theme::Names => (55, 65),
            Theme::Mixed | Theme::Data | Theme::Syncs => (50, 70),
            Theme::Moves => (35, 75),
        };
        match random.below(100) {
            draw if draw < create => self.create(random, directory, name),
            draw if draw < moves => Operation::Rename {
                from: directory,
                from_name: name,
                to: self.directory(random, known),
                to_name: self.name(random),
            },
            draw if draw < moves + 6 => Operation::Link {
                file: self.file(random, known),
                directory,
                name,
            },
            draw if draw < moves + 12 => Operation::RemoveDirectory { directory, name },
            _ => Operation::Remove { directory, name },
        }
    }

    fn create(&self, random: &mut Seeded, directory: FileHandle, name: Name) -> Operation {
        match random.below(20) {
            0..4 => Operation::MakeDirectory {
                directory,
                name,
                attributes: SetAttributes {
                    mode: Some(if random.chance(1, 4) { 0o2775 } else { 0o777 }),
                    ..SetAttributes::default()
                },
            },
            4 => Operation::MakeSymlink {
                directory,
                name,
                target: Bytes::from(vec![b't'; random.between(1, 300) as usize]),
                attributes: SetAttributes::default(),
            },
            5 => Operation::MakeNode {
                directory,
                name,
                kind: *random.pick(&[
                    FileKind::Fifo,
                    FileKind::Socket,
                    FileKind::CharacterDevice { major: 1, minor: 3 },
                ]),
                attributes: SetAttributes::default(),
            },
            draw => {
                let attributes = SetAttributes {
                    mode: Some(*random.pick(&[0o666, 0o644, 0o600, 0o4755])),
                    size_bytes: random.chance(1, 8).then(|| random.below(self.reach_bytes)),
                    ..SetAttributes::default()
                };
                let mode = match draw {
                    6..9 => CreateMode::Exclusive(random.below(3).to_be_bytes()),
                    9..14 => CreateMode::Guarded(attributes),
                    _ => CreateMode::Unchecked(attributes),
                };
                Operation::Create {
                    directory,
                    name,
                    mode,
                }
            }
        }
    }

    fn change_file(&self, random: &mut Seeded, known: &[Known], retained: &[FileHandle]) -> Operation {
        let file = self.file(random, known);
        let commit = match self.theme {
            Theme::Syncs => 40,
            Theme::Data => 12,
            Theme::Mixed | Theme::Names | Theme::Moves => 8,
        };
        match random.below(100) {
            draw if draw < commit => Operation::Commit { file },
            draw if draw < 70 => {
                let stability = match random.below(6) {
                    0 => Stability::FileSync,
                    1 => Stability::DataSync,
                    _ => Stability::Unstable,
                };
                let length = random.between(1, self.write_bytes) as usize;
                let first = random.draw();
                let aligned = random.chance(1, 4);
                let offset = random.below(self.reach_bytes);
                Operation::Write {
                    file,
                    offset: if aligned { offset & !4095 } else { offset },
                    data: pattern(first, length),
                    stability,
                }
            }
            70..85 => Operation::SetAttributes {
                file: if random.chance(1, 3) {
                    random.pick(known).handle
                } else {
                    file
                },
                change: self.attributes(random),
                guard: random.chance(1, 20).then(Timestamp::default),
            },
            85..90 => {
                let name = Bytes::from(format!("user.{}", random.below(4)));
                if random.chance(1, 3) {
                    return Operation::RemoveXattr { file, name };
                }
                let length = if random.chance(1, 10) {
                    9_000
                } else {
                    random.below(100)
                };
                Operation::SetXattr {
                    file,
                    name,
                    value: pattern(random.draw(), length as usize).0,
                    mode: *random.pick(&[XattrMode::Either, XattrMode::Create, XattrMode::Replace]),
                }
            }
            90..94 => {
                let acl = random.chance(3, 4).then(|| acl(random));
                let default = random.chance(1, 3).then(|| acl_or_none(random));
                Operation::SetAcl {
                    file: if default.is_some() {
                        self.directory(random, known)
                    } else {
                        file
                    },
                    access: acl,
                    default,
                }
            }
            94..97 => Operation::Retain { file },
            _ => match retained.first() {
                Some(file) => Operation::Release { file: *file },
                None => Operation::Retain { file },
            },
        }
    }

    fn attributes(&self, random: &mut Seeded) -> SetAttributes {
        let mut change = SetAttributes::default();
        match random.below(6) {
            0..3 => change.size_bytes = Some(random.below(self.reach_bytes)),
            3 => change.mode = Some(*random.pick(&[0o777, 0o600, 0o6755, 0o1777, 0o444])),
            4 => (change.uid, change.gid) = (Some(random.between(1000, 1001) as u32), Some(100)),
            _ => {
                change.modified = *random.pick(&[
                    SetTime::Now,
                    SetTime::To(Timestamp {
                        seconds: -7,
                        nanoseconds: 5,
                    }),
                ]);
            }
        }
        change
    }

    fn query(&self, random: &mut Seeded, known: &[Known]) -> Operation {
        let any = random.pick(known).handle;
        match random.below(20) {
            0..7 => {
                let offset = random.below(self.reach_bytes);
                Operation::Read {
                    file: self.file(random, known),
                    offset: if random.chance(1, 3) { 0 } else { offset },
                    length_bytes: random.between(1, 200_000) as u32,
                }
            }
            7..11 => Operation::Lookup {
                directory: self.directory(random, known),
                name: self.name(random),
            },
            11..14 => Operation::List {
                directory: self.directory(random, known),
            },
            14 => Operation::Parent {
                directory: self.directory(random, known),
            },
            15 => Operation::Access { file: any },
            16 => Operation::ReadLink { file: any },
            17 => Operation::Xattrs { file: any },
            18 => Operation::GetAcl { file: any },
            _ => Operation::Attributes { file: any },
        }
    }
}

/// `length` bytes that no other write has.
fn pattern(first: u64, length: usize) -> Data {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = first;
    while bytes.len() < length {
        // SplitMix64's increment: neighbouring words share nothing a comparison could miss.
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(
            &(word ^ (word >> 31))
                .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                .to_le_bytes(),
        );
    }
    bytes.truncate(length);
    Data(Bytes::from(bytes))
}

fn acl(random: &mut Seeded) -> Acl {
    let mut entries = vec![
        AclEntry {
            tag: AclTag::UserObject,
            permissions: 7,
        },
        AclEntry {
            tag: AclTag::User(1000),
            permissions: random.below(8) as u8,
        },
        AclEntry {
            tag: AclTag::GroupObject,
            permissions: random.below(8) as u8,
        },
        AclEntry {
            tag: AclTag::Mask,
            permissions: random.below(8) as u8,
        },
        AclEntry {
            tag: AclTag::Other,
            permissions: random.below(8) as u8,
        },
    ];
    entries.sort();
    Acl { entries }
}

fn acl_or_none(random: &mut Seeded) -> Acl {
    if random.chance(1, 3) {
        Acl::default()
    } else {
        acl(random)
    }
}

/// On whose behalf the next call is made, by a client who is answered at this level.
pub fn caller(random: &mut Seeded, client: usize, transaction: u32, durability: Durability) -> Caller {
    let uid = *random.pick(&[0, 0, 0, 0, 1000, 1001]);
    Caller {
        credentials: Credentials {
            uid,
            gid: if uid == 0 { 0 } else { 100 },
            groups: if uid == 1001 { vec![1000] } else { Vec::new() },
        },
        request: Some(RequestId {
            client: client as u64,
            transaction,
            checksum: random.draw() as u32,
        }),
        durability,
    }
}
