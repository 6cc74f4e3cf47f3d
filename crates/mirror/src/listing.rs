//! A listing read in order, a page at a time: two of them side by side tell what one store has and the other has not, in the memory of a
//! page each.

use firn_store::{ObjectInfo, ObjectKey, Store, StoreError};
use std::{collections::VecDeque, sync::Arc};

pub(crate) struct Listing {
    store: Arc<dyn Store>,
    prefix: String,
    after: Option<ObjectKey>,
    page: VecDeque<ObjectInfo>,
    is_over: bool,
}

impl Listing {
    pub fn new(store: &Arc<dyn Store>, prefix: String) -> Self {
        Self {
            store: store.clone(),
            prefix,
            after: None,
            page: VecDeque::new(),
            is_over: false,
        }
    }

    /// The next one, which stays until it is taken.
    pub async fn peek(&mut self) -> Result<Option<&ObjectInfo>, StoreError> {
        while self.page.is_empty() && !self.is_over {
            let page = self.store.list(&self.prefix, self.after.as_ref()).await?;
            self.after = page
                .objects
                .last()
                .map(|object| object.key.clone())
                .or(self.after.take());
            // A page that says there is more and has nothing would go on for ever.
            self.is_over = !page.more || page.objects.is_empty();
            self.page = page.objects.into();
        }
        Ok(self.page.front())
    }

    pub fn take(&mut self) -> Option<ObjectInfo> {
        self.page.pop_front()
    }
}
