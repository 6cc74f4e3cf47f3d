//! The alias check: whether two stores are one. A mirror in the bucket that it mirrors is none, and two names of one bucket look alike by
//! nothing but what lies there: a nonce is put through one and looked for through the other.

use crate::store_clock::StoreClock;
use firn_env::Env;
use firn_store::{ObjectKey, PutMode, Store, StoreError};

/// Why a second store cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AliasError {
    /// What is put into one appears in the other.
    #[error(
        "the second store is the first under another name: what was put into one can be read from the other. Nothing is mirrored; name another bucket"
    )]
    Alias,
    /// It could not be found out yet.
    #[error("whether the second store is another than the first is not known yet: {0}")]
    Unasked(#[from] StoreError),
}

/// Puts a nonce into the second store and looks for it in the first. The nonce is removed if these credentials may.
///
/// # Errors
/// [`AliasError`].
pub async fn check_not_an_alias(env: &Env, first: &dyn Store, second: &dyn Store) -> Result<(), AliasError> {
    check_and_ask_clock(env, first, second).await.map(drop)
}

/// The same; gives the second store's clock, which dated the nonce.
pub(crate) async fn check_and_ask_clock(
    env: &Env,
    first: &dyn Store,
    second: &dyn Store,
) -> Result<StoreClock, AliasError> {
    let key = ObjectKey::new(&format!(
        "probe/{:016x}{:016x}",
        env.random_u64(),
        env.random_u64()
    ));
    let nonce: [u8; 32] = env.random_bytes();
    second
        .put(&key, vec![nonce.to_vec().into()], PutMode::Create)
        .await?;
    let seen = first.get(&key).await;
    let dated = second.head(&key).await;
    // A nonce that stays is 32 bytes nobody reads.
    if let Err(error) = second.delete(&key).await {
        tracing::debug!(%error, %key, "the nonce stays in the second store");
    }
    match seen {
        Ok(found) if found == nonce[..] => return Err(AliasError::Alias),
        // Somebody else's object of a random name is as good as none.
        Err(StoreError::NotFound { .. }) | Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(StoreClock::new(env, dated?.modified_ms))
}
