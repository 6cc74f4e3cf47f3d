//! Published price books, and which one holds.

use crate::{Billing, BillingError, Month, PriceBook, items, layout, tenant::TenantHead};
use firn_table::{Condition, ItemKey, TableError, Write};
use firn_usage::TenantName;
use serde::{Deserialize, Serialize};

/// An entry of the list of published books.
#[derive(Serialize, Deserialize)]
struct BookName {
    name: String,
}

impl Billing {
    /// Publishes a version of a price book. It is never changed afterwards.
    ///
    /// A later version must begin in a month that has not begun; the first version of a name may begin anywhere, as nobody
    /// can have been charged by it.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn publish_book(&self, book: &PriceBook) -> Result<(), BillingError> {
        book.check()?;
        let versions = self.versions_of(&book.name).await?;
        if let Some(known) = versions.iter().find(|known| known.effective == book.effective) {
            if known == book {
                return Ok(());
            }
            return Err(BillingError::BookExists {
                name: book.name.clone(),
                effective: book.effective,
            });
        }
        let earliest = Month::of_ms(self.now_ms()).next();
        if !versions.is_empty() && book.effective < earliest {
            return Err(BillingError::BookTooEarly {
                effective: book.effective,
                earliest,
            });
        }
        if let Some(known) = versions.first()
            && known.currency != book.currency
        {
            return Err(BillingError::Invalid(format!(
                "price book {:?} is in {}; a book in {} needs another name",
                book.name, known.currency, book.currency
            )));
        }
        let mut writes = vec![Write::Put {
            key: ItemKey::new(layout::books(&book.name), book.effective.to_string()),
            value: items::encode(book)?,
            condition: Condition::Absent,
        }];
        // The list of names is what a backup goes by; a name is never taken back.
        let name = layout::book_name_key(&book.name);
        if self.table.get(&name).await?.is_none() {
            writes.push(Write::Put {
                key: name,
                value: items::encode(&BookName {
                    name: book.name.clone(),
                })?,
                condition: Condition::Absent,
            });
        }
        match self.table.transact(writes).await {
            Ok(_) => Ok(()),
            Err(TableError::ConditionFailed { .. }) => Err(BillingError::BookExists {
                name: book.name.clone(),
                effective: book.effective,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// All versions of a book, the one that comes with this build included, oldest first.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn versions_of(&self, name: &str) -> Result<Vec<PriceBook>, BillingError> {
        let mut versions: Vec<PriceBook> = Vec::new();
        let embedded = PriceBook::standard();
        if embedded.name == name {
            versions.push(embedded);
        }
        let mut after = None;
        loop {
            let page = self
                .table
                .query(&layout::books(name), "", after.as_deref(), 100)
                .await?;
            for item in &page.items {
                versions.push(items::decode(item)?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        versions.sort_by_key(|book| book.effective);
        Ok(versions)
    }

    /// The prices that hold for a tenant in a month.
    ///
    /// # Errors
    /// [`BillingError::NoBook`] if none is in force then.
    pub async fn book_of(&self, tenant: &TenantName, month: Month) -> Result<PriceBook, BillingError> {
        let (head, _) = self.tenant_head(tenant).await?;
        self.book_in_force(&head, month).await
    }

    /// The version of a tenant's book that holds in a month.
    pub(crate) async fn book_in_force(
        &self,
        head: &TenantHead,
        month: Month,
    ) -> Result<PriceBook, BillingError> {
        let name = head.book(month);
        let versions = self.versions_of(name).await?;
        versions
            .into_iter()
            .rfind(|book| book.effective <= month)
            .ok_or_else(|| BillingError::NoBook {
                name: name.to_owned(),
                month,
            })
    }
}
