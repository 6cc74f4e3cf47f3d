//! A store that misbehaves on purpose, for tests and for `firn-edge --fault`.
//!
//! What it does wrong is described by [`Faults`], fixed for the whole run, changed by a timetable of phases, or set at run
//! time through [`FaultControl`]. All chances are drawn from one seeded generator, the same number for every request, so a
//! deterministic executor gives the same faults for the same seed.
//!
//! ```text
//! request → outage? → half the latency → upload → 503? → lost? → (late?) → the store does it → reply lost?
//!         → half the latency → download → torn? → corrupt? → reply
//! ```
//!
//! It lies below metering (refused requests are counted) and below retrying. A request that is *late* is done after the
//! caller was told of a timeout, as a packet that waited in some router would; it is done by a task of the environment
//! given here, which in a simulation should be the world's, not that of a machine that may crash.

use crate::{
    ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError, VersionPage,
    fault_config::{FaultConfig, FaultConfigError, Faults, Outage},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, Monotonic};
use futures::future::BoxFuture;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// A store whose requests fail, dawdle, lie and get lost.
pub struct Faulty {
    shared: Arc<Shared>,
}

/// Changes what a [`Faulty`] store does wrong while it runs, and tells what it did.
#[derive(Clone)]
pub struct FaultControl {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    inner: Arc<dyn Store>,
    config: FaultConfig,
    started: Monotonic,
    state: Mutex<State>,
}

struct State {
    random: SplitMix64,
    /// Set at run time; stands above the configuration.
    set: Option<Faults>,
    outage: Option<Outage>,
    upload_free_at: Monotonic,
    download_free_at: Monotonic,
    /// New objects that are not to be seen yet.
    invisible_until: BTreeMap<ObjectKey, Monotonic>,
    remembered: Vec<(String, BTreeMap<ObjectKey, Bytes>)>,
    injected: BTreeMap<&'static str, u64>,
}

/// A remembered state of a prefix, see [`FaultControl::remember`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered(usize);

/// What will happen to one request.
struct Dice {
    faults: Faults,
    jitter: Duration,
    unavailable: bool,
    lost_request: bool,
    late: bool,
    late_by: Duration,
    lost_reply: bool,
    torn: bool,
    dropped: bool,
    invisible_for: Option<Duration>,
    corrupt_bit: Option<u64>,
}

type Action<T> = BoxFuture<'static, Result<T, StoreError>>;

impl Faulty {
    /// Puts the faults of `config` before `inner`.
    ///
    /// # Errors
    /// If a figure in `config` makes no sense.
    pub fn new(env: &Env, inner: Arc<dyn Store>, config: FaultConfig) -> Result<Self, FaultConfigError> {
        config.check()?;
        let started = env.now();
        let state = Mutex::new(State {
            random: SplitMix64(config.seed),
            set: None,
            outage: None,
            upload_free_at: started,
            download_free_at: started,
            invisible_until: BTreeMap::new(),
            remembered: Vec::new(),
            injected: BTreeMap::new(),
        });
        Ok(Self {
            shared: Arc::new(Shared {
                env: env.clone(),
                inner,
                config,
                started,
                state,
            }),
        })
    }

    /// The switchboard.
    pub fn control(&self) -> FaultControl {
        FaultControl {
            shared: self.shared.clone(),
        }
    }
}

impl FaultControl {
    /// Replaces all faults from now on, whatever the configuration's timetable says.
    ///
    /// # Errors
    /// If a figure makes no sense; nothing is changed then.
    pub fn set(&self, faults: Faults) -> Result<(), FaultConfigError> {
        faults.check()?;
        self.shared.state().set = Some(faults);
        Ok(())
    }

    /// Switches an outage on (or off, with [`Outage::None`]) and leaves all other faults as they are.
    pub fn set_outage(&self, outage: Outage) {
        self.shared.state().outage = Some(outage);
    }

    /// Goes back to the configuration and its timetable.
    pub fn reset(&self) {
        let mut state = self.shared.state();
        state.set = None;
        state.outage = None;
    }

    /// How often each fault was injected, by its name in the configuration.
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.shared.state().injected.clone()
    }

    /// Keeps (in memory) what now stands under `prefix`, for [`FaultControl::roll_back`].
    ///
    /// # Errors
    /// If the store underneath fails.
    pub async fn remember(&self, prefix: &str) -> Result<Remembered, StoreError> {
        let mut contents = BTreeMap::new();
        for key in self.keys(prefix).await? {
            contents.insert(key.clone(), self.shared.inner.get(&key).await?);
        }
        let mut state = self.shared.state();
        state.remembered.push((prefix.to_owned(), contents));
        Ok(Remembered(state.remembered.len() - 1))
    }

    /// Makes the store hold under the remembered prefix what it held then: later objects vanish, removed ones return.
    ///
    /// # Errors
    /// If the store underneath fails.
    pub async fn roll_back(&self, to: Remembered) -> Result<(), StoreError> {
        let (prefix, contents) = self.shared.state().remembered[to.0].clone();
        for key in self.keys(&prefix).await? {
            if !contents.contains_key(&key) {
                self.shared.inner.delete(&key).await?;
            }
        }
        for (key, content) in contents {
            self.shared
                .inner
                .put(&key, vec![content], PutMode::Overwrite)
                .await?;
        }
        self.shared.count("rollback");
        Ok(())
    }

    /// Flips one bit of a stored object for good.
    ///
    /// # Errors
    /// If the store underneath fails, or the object has no such byte.
    pub async fn damage(&self, key: &ObjectKey, offset: u64) -> Result<(), StoreError> {
        let mut content = self.shared.inner.get(key).await?.to_vec();
        let byte = usize::try_from(offset)
            .ok()
            .and_then(|offset| content.get_mut(offset))
            .ok_or_else(|| StoreError::invalid("damage", key, format!("there is no byte {offset}")))?;
        *byte ^= 1;
        self.shared
            .inner
            .put(key, vec![content.into()], PutMode::Overwrite)
            .await?;
        self.shared.count("damage");
        Ok(())
    }

    async fn keys(&self, prefix: &str) -> Result<Vec<ObjectKey>, StoreError> {
        let mut keys: Vec<ObjectKey> = Vec::new();
        loop {
            let page = self.shared.inner.list(prefix, keys.last()).await?;
            keys.extend(page.objects.into_iter().map(|object| object.key));
            if !page.more {
                return Ok(keys);
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn count(&self, fault: &'static str) {
        *self.state().injected.entry(fault).or_default() += 1;
    }

    fn roll(&self) -> Dice {
        let elapsed = self.env.now().since(self.started);
        let mut state = self.state();
        let mut faults = match &state.set {
            Some(faults) => faults.clone(),
            None => self.config.at(elapsed).clone(),
        };
        if let Some(outage) = state.outage {
            faults.outage = outage;
        }
        let random = &mut state.random;
        let mut jitter_ms = random.exponential(faults.jitter_ms);
        if random.chance(faults.slow) {
            jitter_ms += faults.slow_ms as f64;
        }
        Dice {
            jitter: Duration::from_micros((jitter_ms * 1000.0) as u64),
            unavailable: random.chance(faults.unavailable),
            lost_request: random.chance(faults.lost_request),
            late: random.chance(faults.late),
            late_by: Duration::from_millis(random.below(faults.late_ms)),
            lost_reply: random.chance(faults.lost_reply),
            torn: random.chance(faults.torn),
            // Drawn only where it is asked for: seeds mean what they meant before there was this fault.
            dropped: faults.dropped > 0.0 && random.chance(faults.dropped),
            invisible_for: {
                let (hit, ms) = (random.chance(faults.invisible), random.below(faults.invisible_ms));
                hit.then(|| Duration::from_millis(ms + 1))
            },
            corrupt_bit: {
                let (hit, bit) = (random.chance(faults.corrupt), random.next());
                hit.then_some(bit)
            },
            faults,
        }
    }

    /// One request, except for what concerns the bytes of its reply.
    async fn request<T: Send + 'static>(
        &self,
        dice: &Dice,
        operation: &'static str,
        key: &ObjectKey,
        bytes_up: u64,
        action: Action<T>,
    ) -> Result<T, StoreError> {
        let fail = |fault, detail: &str| {
            self.count(fault);
            Err(StoreError::unavailable(operation, key, detail))
        };
        let timeout = Duration::from_millis(dice.faults.timeout_ms);
        let half_latency = (Duration::from_millis(dice.faults.latency_ms) + dice.jitter) / 2;
        match dice.faults.outage {
            Outage::None => {}
            Outage::Refuse => {
                self.env.sleep(half_latency * 2).await;
                return fail("outage", "injected outage: connection refused");
            }
            Outage::Hang => {
                self.env.sleep(timeout).await;
                return fail("outage", "injected outage: no answer");
            }
        }
        self.env.sleep(half_latency).await;
        // A torn upload breaks half-way; the store drops what it has.
        let torn_up = dice.torn && bytes_up > 0;
        let sent = if torn_up { bytes_up / 2 } else { bytes_up };
        self.transfer(sent, &dice.faults, dice.faults.up_bits_per_second, |state| {
            &mut state.upload_free_at
        })
        .await;
        if torn_up {
            return fail("torn", "injected: connection broke in mid-upload");
        }
        if dice.unavailable {
            self.env.sleep(half_latency).await;
            return fail("unavailable", "injected: 503 slow down");
        }
        if dice.lost_request {
            self.env.sleep(timeout).await;
            return fail("lost_request", "injected: no answer, not done");
        }
        if dice.late {
            let (env, late_by) = (self.env.clone(), dice.late_by);
            self.env.spawn("store.fault.late", async move {
                env.sleep(late_by).await;
                // Nobody hears of the outcome; that is the fault.
                let _ = action.await;
            });
            self.env.sleep(timeout).await;
            return fail("late", "injected: no answer, done later");
        }
        let result = action.await;
        if dice.lost_reply {
            self.env.sleep(timeout).await;
            return fail("lost_reply", "injected: no answer, but done");
        }
        self.env.sleep(half_latency).await;
        result
    }

    /// Waits for `bytes` to pass a line that carries one transfer after the other, and the connection, which may be slower.
    async fn transfer(
        &self,
        bytes: u64,
        faults: &Faults,
        line_bits_per_second: Option<u64>,
        free_at: impl Fn(&mut State) -> &mut Monotonic,
    ) {
        let takes = |rate: Option<u64>| {
            rate.map_or(Duration::ZERO, |rate| {
                let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            })
        };
        let (line, connection) = (
            takes(line_bits_per_second),
            takes(faults.connection_bits_per_second),
        );
        if line.is_zero() && connection.is_zero() {
            return;
        }
        let now = self.env.now();
        let done = {
            let mut state = self.state();
            let free_at = free_at(&mut state);
            if !line.is_zero() {
                *free_at = (*free_at).max(now).after(line);
            }
            (*free_at).max(now.after(connection))
        };
        self.env.sleep(done.since(now)).await;
    }

    /// The bytes of a reply: they take their time, may stop half-way, and may be wrong.
    async fn reply(
        &self,
        dice: &Dice,
        operation: &'static str,
        key: &ObjectKey,
        bytes: Bytes,
    ) -> Result<Bytes, StoreError> {
        let length = bytes.len() as u64;
        let torn_down = dice.torn && length > 0;
        let received = if torn_down { length / 2 } else { length };
        self.transfer(
            received,
            &dice.faults,
            dice.faults.down_bits_per_second,
            |state| &mut state.download_free_at,
        )
        .await;
        if torn_down {
            self.count("torn");
            return Err(StoreError::unavailable(
                operation,
                key,
                "injected: connection broke in mid-download",
            ));
        }
        match dice.corrupt_bit {
            Some(bit) if length > 0 => {
                self.count("corrupt");
                let mut damaged = bytes.to_vec();
                damaged[((bit >> 3) % length) as usize] ^= 1 << (bit & 7);
                Ok(damaged.into())
            }
            _ => Ok(bytes),
        }
    }

    fn is_invisible(&self, key: &ObjectKey) -> bool {
        let now = self.env.now();
        let hidden = self
            .state()
            .invisible_until
            .get(key)
            .is_some_and(|until| now < *until);
        if hidden {
            self.count("invisible");
        }
        hidden
    }

    fn visible<T>(&self, key: &ObjectKey, found: T) -> Result<T, StoreError> {
        match self.is_invisible(key) {
            true => Err(StoreError::not_found(key)),
            false => Ok(found),
        }
    }

    fn hide(&self, key: &ObjectKey, duration: Duration) {
        let now = self.env.now();
        let mut state = self.state();
        state.invisible_until.retain(|_, until| now < *until);
        state.invisible_until.insert(key.clone(), now.after(duration));
    }
}

#[async_trait]
impl Store for Faulty {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let shared = &self.shared;
        let dice = shared.roll();
        let bytes_up = parts.iter().map(|part| part.len() as u64).sum();
        let (late_shared, key_of_action) = (shared.clone(), key.clone());
        let invisible_for = dice.invisible_for;
        let dropped = dice.dropped && mode == PutMode::Create && key.as_str().contains("/log/");
        let action = Box::pin(async move {
            if dropped {
                late_shared.count("dropped");
                return Ok(());
            }
            let (shared, key) = (late_shared, key_of_action);
            // Only an object that is new can be late in coming into view.
            let hide_for = match (invisible_for, mode) {
                (Some(duration), PutMode::Create) => Some(duration),
                (Some(duration), PutMode::Overwrite) => match shared.inner.head(&key).await {
                    Err(StoreError::NotFound { .. }) => Some(duration),
                    _ => None,
                },
                (None, _) => None,
            };
            shared.inner.put(&key, parts, mode).await?;
            if let Some(duration) = hide_for {
                shared.hide(&key, duration);
            }
            Ok(())
        });
        shared.request(&dice, "put", key, bytes_up, action).await
    }

    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let shared = &self.shared;
        let dice = shared.roll();
        let (inner, wanted) = (shared.inner.clone(), key.clone());
        let action = Box::pin(async move { inner.get(&wanted).await });
        let bytes = shared.request(&dice, "get", key, 0, action).await?;
        let bytes = shared.visible(key, bytes)?;
        shared.reply(&dice, "get", key, bytes).await
    }

    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        let shared = &self.shared;
        let dice = shared.roll();
        let (inner, wanted) = (shared.inner.clone(), key.clone());
        let action = Box::pin(async move { inner.get_range(&wanted, offset, length).await });
        let bytes = shared.request(&dice, "get", key, 0, action).await?;
        let bytes = shared.visible(key, bytes)?;
        shared.reply(&dice, "get", key, bytes).await
    }

    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        let shared = &self.shared;
        let dice = shared.roll();
        let (inner, wanted) = (shared.inner.clone(), key.clone());
        let action = Box::pin(async move { inner.head(&wanted).await });
        let info = shared.request(&dice, "head", key, 0, action).await?;
        shared.visible(key, info)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let dice = self.shared.roll();
        let (inner, wanted) = (self.shared.inner.clone(), key.clone());
        let action = Box::pin(async move { inner.delete(&wanted).await });
        self.shared.request(&dice, "delete", key, 0, action).await
    }

    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let shared = &self.shared;
        let dice = shared.roll();
        let (action_shared, prefix_of_action) = (shared.clone(), prefix.to_owned());
        let mut last = after.cloned();
        let action = Box::pin(async move {
            loop {
                let mut page = action_shared.inner.list(&prefix_of_action, last.as_ref()).await?;
                last = page.objects.last().map(|object| object.key.clone());
                page.objects
                    .retain(|object| !action_shared.is_invisible(&object.key));
                if !page.objects.is_empty() || !page.more {
                    return Ok(page);
                }
            }
        });
        shared
            .request(&dice, "list", &ObjectKey::of_prefix(prefix), 0, action)
            .await
    }

    async fn keeps_versions(&self) -> Result<bool, StoreError> {
        let dice = self.shared.roll();
        let inner = self.shared.inner.clone();
        let action = Box::pin(async move { inner.keeps_versions().await });
        let bucket = ObjectKey::of_prefix("");
        self.shared
            .request(&dice, "see versioning", &bucket, 0, action)
            .await
    }

    async fn versions(&self, key: &ObjectKey) -> Result<VersionPage, StoreError> {
        let dice = self.shared.roll();
        let (inner, wanted) = (self.shared.inner.clone(), key.clone());
        let action = Box::pin(async move { inner.versions(&wanted).await });
        self.shared.request(&dice, "list versions", key, 0, action).await
    }

    async fn delete_version(&self, key: &ObjectKey, version: &str) -> Result<(), StoreError> {
        let dice = self.shared.roll();
        let (inner, wanted, version) = (self.shared.inner.clone(), key.clone(), version.to_owned());
        let action = Box::pin(async move { inner.delete_version(&wanted, &version).await });
        self.shared.request(&dice, "delete version", key, 0, action).await
    }
}

/// Steele, Lea and Flood's generator: one addition and three multiplications, every seed as good as any other. Enough for
/// choosing faults, and the same on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In [0, 1), in steps of 2⁻⁵³.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Below `bound`; zero if that is zero.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Exponentially distributed with this mean, cut at twenty times the mean.
    fn exponential(&mut self, mean: u64) -> f64 {
        let mean = mean as f64;
        (-mean * (1.0 - self.unit()).ln()).min(20.0 * mean)
    }
}
