//! Changes as most calls make them: of one inode, or with a new one; and the attributes around a change, for its answer.

use crate::{
    change::{Before, ChangeRequest, Planned},
    record::Operation,
    state::{State, Stop},
    volume::Inner,
};
use firn_vfs::{Attributes, Caller, ChangedAttributes, Created, FileHandle, Timestamp, VfsError};

impl Inner {
    /// A change of one inode whose answer is its attributes before and after.
    pub(super) async fn change_inode(
        &self,
        caller: &Caller,
        number: u64,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Option<Operation>, Stop>,
    ) -> Result<ChangedAttributes, VfsError> {
        self.change(caller, request, |state, now| {
            let before = state.see(number)?.attributes;
            Ok(match plan(state, now)? {
                None => Planned::Unchanged(ChangedAttributes {
                    before: Some(before.clone()),
                    after: before,
                }),
                Some(operation) => Planned::Change {
                    operation,
                    before: Before(vec![before]),
                    answer: Box::new(move |state, before| {
                        changed(state, number, before.0.into_iter().next())
                    }),
                },
            })
        })
        .await
    }

    /// A change that makes a new file.
    pub(super) async fn change_new(
        &self,
        caller: &Caller,
        directory: u64,
        request: ChangeRequest,
        mut plan: impl FnMut(&mut State, Timestamp) -> Result<Operation, Stop>,
    ) -> Result<Created, VfsError> {
        self.change(caller, request, |state, now| {
            let operation = plan(state, now)?;
            let before = state.see(directory)?.attributes;
            Ok(planned_create(directory, before, operation))
        })
        .await
    }
}

/// The attributes of an inode that was just changed, under the same lock.
pub(super) fn after(state: &mut State, number: u64) -> Attributes {
    match state.see(number) {
        Ok(seen) => seen.attributes,
        Err(stop) => unreachable!("inode {number} was changed under this lock, yet {stop:?}"),
    }
}

pub(super) fn changed(state: &mut State, number: u64, before: Option<Attributes>) -> ChangedAttributes {
    ChangedAttributes {
        before,
        after: after(state, number),
    }
}

pub(super) fn planned_create(directory: u64, before: Attributes, operation: Operation) -> Planned<Created> {
    let Operation::Create { inode, .. } = &operation else {
        unreachable!("a new file is planned as a creation");
    };
    let number = inode.number;
    Planned::Change {
        operation,
        before: Before(vec![before]),
        answer: Box::new(move |state, before| Created {
            handle: FileHandle {
                file_system: state.file_system,
                inode: number,
            },
            attributes: after(state, number),
            directory: changed(state, directory, before.0.into_iter().next()),
        }),
    }
}
