//! The procedures and their numbers.

macro_rules! procedures {
    ($($(#[$meta:meta])* $variant:ident = $number:literal $name:literal,)*) => {
        /// A procedure of NFS version 3.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Procedure { $($(#[$meta])* $variant = $number),* }

        impl Procedure {
            /// All of them, by number.
            pub const ALL: [Self; 22] = [$(Self::$variant),*];

            /// The name RFC 1813 gives it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

procedures! {
    /// Does nothing.
    Null = 0 "NULL",
    /// Gets attributes.
    GetAttributes = 1 "GETATTR",
    /// Sets attributes.
    SetAttributes = 2 "SETATTR",
    /// Finds a name.
    Lookup = 3 "LOOKUP",
    /// Checks permissions.
    Access = 4 "ACCESS",
    /// Reads a symbolic link.
    ReadLink = 5 "READLINK",
    /// Reads data.
    Read = 6 "READ",
    /// Writes data.
    Write = 7 "WRITE",
    /// Creates a file.
    Create = 8 "CREATE",
    /// Creates a directory.
    MakeDirectory = 9 "MKDIR",
    /// Creates a symbolic link.
    MakeSymlink = 10 "SYMLINK",
    /// Creates a special file.
    MakeNode = 11 "MKNOD",
    /// Removes a file.
    Remove = 12 "REMOVE",
    /// Removes a directory.
    RemoveDirectory = 13 "RMDIR",
    /// Renames.
    Rename = 14 "RENAME",
    /// Adds a name.
    Link = 15 "LINK",
    /// Lists a directory.
    ReadDirectory = 16 "READDIR",
    /// Lists a directory with attributes and handles.
    ReadDirectoryPlus = 17 "READDIRPLUS",
    /// Tells what is free.
    FileSystemStatus = 18 "FSSTAT",
    /// Tells what the server can do.
    FileSystemInformation = 19 "FSINFO",
    /// Tells limits of names and links.
    PathConfiguration = 20 "PATHCONF",
    /// Makes written data stable.
    Commit = 21 "COMMIT",
}

impl Procedure {
    /// The procedure of a number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether executing it twice differs from executing it once, so that the volume must remember it. (WRITE differs too,
    /// but only if another comes in between.)
    pub fn is_change(self) -> bool {
        match self {
            Self::SetAttributes
            | Self::Create
            | Self::MakeDirectory
            | Self::MakeSymlink
            | Self::MakeNode
            | Self::Remove
            | Self::RemoveDirectory
            | Self::Rename
            | Self::Link => true,
            Self::Null
            | Self::GetAttributes
            | Self::Lookup
            | Self::Access
            | Self::ReadLink
            | Self::Read
            | Self::Write
            | Self::ReadDirectory
            | Self::ReadDirectoryPlus
            | Self::FileSystemStatus
            | Self::FileSystemInformation
            | Self::PathConfiguration
            | Self::Commit => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_procedures_convert_both_ways() {
        for (number, procedure) in (0u32..).zip(Procedure::ALL) {
            assert_eq!(procedure as u32, number);
            assert_eq!(Procedure::from_number(number), Some(procedure));
        }
        assert_eq!(Procedure::from_number(22), None);
    }
}
