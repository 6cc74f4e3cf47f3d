//! A client of one office: it makes files, changes registers, creates names that another office creates as well, writes unstably and commits, reads, and
//! has the owner publish.

use super::{Acknowledged, REGISTERS, office::Office};
use crate::sharing::owner::{filled, root};
use bytes::Bytes;
use firn_env::sim::Seeded;
use firn_vfs::{Caller, CreateMode, Durability, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{MemberRole, MemberVfs};
use std::{sync::Arc, time::Duration};

const STEPS: u64 = 30;
/// A call is made again while it is told to.
const RETRY_FOR: Duration = Duration::from_secs(240);
/// Bytes of a file.
const FILE_BYTES: usize = 3_000;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).expect("a name")
}

/// See the module.
pub async fn work(office: Arc<Office>, mut random: Seeded) {
    let env = office.env.clone();
    for _ in 0..STEPS {
        let pause = match random.below(12) {
            0 => random.duration(Duration::from_secs(20), Duration::from_secs(120)),
            1..=5 => random.duration(Duration::ZERO, Duration::from_millis(50)),
            _ => random.duration(Duration::ZERO, Duration::from_secs(4)),
        };
        env.sleep(pause).await;
        match random.below(20) {
            0..=6 => drop(make_file(&office).await),
            7..=9 => {
                write_register(&office, random.index(REGISTERS)).await;
                if random.chance(1, 2) {
                    publish(&office).await;
                }
            }
            10..=14 => read_register(&office, random.index(REGISTERS)).await,
            15 => make_exclusive(&office, random.below(6)).await,
            16 | 17 => {
                let pause = match random.below(3) {
                    0 => random.duration(Duration::from_secs(30), Duration::from_secs(120)),
                    _ => random.duration(Duration::ZERO, Duration::from_secs(1)),
                };
                write_unstably(&office, pause).await;
            }
            _ => publish(&office).await,
        }
    }
}

/// A client that reads, whatever the other one waits for.
pub async fn read_on(office: Arc<Office>, mut random: Seeded) {
    while !office.shared.ledger().is_over {
        let pause = random.duration(Duration::ZERO, Duration::from_secs(6));
        office.env.sleep(pause).await;
        read_register(&office, random.index(REGISTERS)).await;
    }
}

/// Calls until the call is answered otherwise than "try again"; `None`: the machine went down, or that took too long.
async fn call<T, F>(
    office: &Arc<Office>,
    call: impl Fn(Arc<MemberVfs>) -> F + Send + Sync + 'static,
) -> Option<Result<T, VfsError>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, VfsError>> + Send,
{
    let vfs = Arc::new(office.member()?.vfs());
    if !office.machine().is_running() {
        return None;
    }
    let env = office.machine().env();
    let clock = env.clone();
    let called = env.spawn("client", async move {
        let end = clock.now().after(RETRY_FOR);
        loop {
            match call(vfs.clone()).await {
                Err(VfsError::TryAgain { .. }) if clock.now() < end => {
                    clock.sleep(Duration::from_secs(1)).await;
                }
                Err(VfsError::TryAgain { .. }) => return None,
                answer => return Some(answer),
            }
        }
    });
    called.await.ok().flatten()
}

async fn found(vfs: &MemberVfs, name: &Name) -> Result<FileHandle, VfsError> {
    match vfs.lookup(&root(), vfs.root(), name).await {
        Ok((file, _)) => Ok(file),
        Err(VfsError::NotFound) => {
            let mode = CreateMode::Unchecked(SetAttributes::default());
            Ok(vfs.create(&root(), vfs.root(), name, mode).await?.handle)
        }
        Err(error) => Err(error),
    }
}

/// Writes a number into a file of this name, which may be there.
async fn write(
    vfs: &MemberVfs,
    name: &Name,
    number: u64,
    stability: Stability,
    durability: Durability,
) -> Result<FileHandle, VfsError> {
    let caller = Caller { durability, ..root() };
    for _ in 0..4 {
        let file = found(vfs, name).await?;
        let data = vec![Bytes::from(filled(number, FILE_BYTES))];
        match vfs.write(&caller, file, 0, data, stability).await {
            // It was in what a takeover cut off.
            Err(VfsError::Stale) => {}
            written => return written.map(|_| file),
        }
    }
    Err(VfsError::Stale)
}

/// The number in a file.
pub async fn number_in(vfs: &dyn Vfs, name: &Name) -> Result<Option<u64>, VfsError> {
    let (file, _) = match vfs.lookup(&root(), vfs.root(), name).await {
        Err(VfsError::NotFound) => return Ok(None),
        found => found?,
    };
    let bytes = vfs.read(&root(), file, 0, 1 << 20).await?.data.concat();
    let Some(first) = bytes.first_chunk() else {
        return Ok(Some(0));
    };
    let number = u64::from_le_bytes(*first);
    match bytes == filled(number, FILE_BYTES) {
        true => Ok(Some(number)),
        false => Err(VfsError::Io(format!("{} bytes that nobody wrote", bytes.len()))),
    }
}

pub fn file_name(number: u64) -> Name {
    name(&format!("w{number}"))
}

fn register_name(register: usize) -> Name {
    name(&format!("register{register}"))
}

fn refused<T>(office: &Office, what: &str, answer: &Option<Result<T, VfsError>>) {
    if let Some(Err(error)) = answer {
        office
            .shared
            .fail(format!("office {}: {what} was refused: {error}", office.number));
    }
}

/// Makes a file that no other client makes; whether that was acknowledged.
pub async fn make_file(office: &Arc<Office>) -> bool {
    let number = {
        let mut ledger = office.shared.ledger();
        ledger.next += 1;
        ledger.next
    };
    let durability = match number % 3 {
        0 => Durability::Cloud,
        _ => Durability::Journal,
    };
    let made = call(office, move |vfs| async move {
        write(&vfs, &file_name(number), number, Stability::FileSync, durability).await
    })
    .await;
    refused(office, "a new file", &made);
    let is_made = matches!(made, Some(Ok(_)));
    if is_made {
        office.shared.count("files");
        let mut ledger = office.shared.ledger();
        ledger.files.insert(number);
        if durability == Durability::Cloud {
            ledger.files_in_cloud.insert(number);
        }
    }
    is_made
}

/// Changes a register that no other client changes meanwhile.
async fn write_register(office: &Arc<Office>, register: usize) {
    let value = {
        let mut ledger = office.shared.ledger();
        if std::mem::replace(&mut ledger.busy[register], true) {
            return;
        }
        ledger.attempts[register] += 1;
        ledger.attempts[register]
    };
    let written = call(office, move |vfs| async move {
        write(
            &vfs,
            &register_name(register),
            value,
            Stability::FileSync,
            Durability::Journal,
        )
        .await
    })
    .await;
    refused(office, "a register", &written);
    let status = office.member().map(|member| member.status());
    let mut ledger = office.shared.ledger();
    ledger.busy[register] = false;
    // By the term that it was acknowledged in, if that goes on: else it was published or salvaged with it.
    if let (Some(Ok(_)), Some(status)) = (written, status)
        && status.role == MemberRole::Owning
    {
        let term = office.term_name(&status);
        ledger
            .unpublished
            .entry(term)
            .or_default()
            .push(Acknowledged { register, value });
    }
}

async fn read_register(office: &Arc<Office>, register: usize) {
    let arrived = office.env.now();
    let freshness = office.options.follow.freshness;
    let low = office
        .shared
        .ledger()
        .published_at(register, |at| match freshness.is_zero() {
            true => at <= arrived,
            false => at.after(freshness) < arrived,
        });
    let Some(member) = office.member().filter(|_| office.machine().is_running()) else {
        return;
    };
    let vfs = member.vfs();
    let env = office.machine().env();
    // Once: what is told to try again is nothing that was read.
    let reading = env.spawn("reader", async move {
        number_in(&vfs, &register_name(register)).await
    });
    match reading.await {
        Ok(Ok(value)) => {
            office.shared.count("reads");
            let value = value.unwrap_or(0);
            let high = office.shared.ledger().attempts[register];
            if value < low || value > high {
                office.shared.fail(format!(
                    "office {} read {value} in register {register}, of which {low} was published before, and {high} is the newest",
                    office.number
                ));
            }
        }
        Ok(Err(VfsError::TryAgain { .. })) => office.shared.count("reads told to try again"),
        // Between the look-up and the read it was taken over.
        Ok(Err(VfsError::Stale)) | Err(_) => {}
        Ok(Err(error)) => office
            .shared
            .fail(format!("office {}: a read was refused: {error}", office.number)),
    }
}

async fn make_exclusive(office: &Arc<Office>, number: u64) {
    let made = call(office, move |vfs| async move {
        let mode = CreateMode::Guarded(SetAttributes::default());
        let made = vfs
            .create(&root(), vfs.root(), &name(&format!("e{number}")), mode)
            .await;
        match made {
            Ok(_) => Ok(true),
            Err(VfsError::Exists) => Ok(false),
            Err(error) => Err(error),
        }
    })
    .await;
    refused(office, "a name", &made);
    if let Some(Ok(true)) = made {
        *office.shared.ledger().exclusive.entry(number).or_default() += 1;
    }
}

/// Writes unstably into a file that only this office writes, and commits some time later.
async fn write_unstably(office: &Arc<Office>, pause: Duration) {
    let Some(member) = office.member() else { return };
    let file_name = name(&format!("u{}", office.number));
    let number = {
        let mut ledger = office.shared.ledger();
        ledger.next += 1;
        ledger.next
    };
    let verifier = member.vfs().write_verifier();
    let written_as = file_name.clone();
    let written = call(office, move |vfs| {
        let file_name = written_as.clone();
        async move { write(&vfs, &file_name, number, Stability::Unstable, Durability::Journal).await }
    })
    .await;
    refused(office, "an unstable write", &written);
    let Some(Ok(file)) = written else { return };
    office.env.sleep(pause).await;
    let committed = call(office, move |vfs| async move {
        vfs.commit(&root(), file).await?;
        Ok(vfs.write_verifier())
    })
    .await;
    match committed {
        // The client writes again what was lost.
        None | Some(Err(VfsError::Stale)) => return,
        Some(Ok(after)) if after != verifier => {
            office.shared.count("verifiers that changed");
            return;
        }
        Some(Ok(_)) => {}
        Some(Err(error)) => {
            office
                .shared
                .fail(format!("office {}: a commit was refused: {error}", office.number));
            return;
        }
    }
    let broken = office.broken();
    let read = call(office, move |vfs| {
        let file_name = file_name.clone();
        async move { number_in(&*vfs, &file_name).await }
    })
    .await;
    office.shared.count("commits of clients");
    let is_there = matches!(&read, Some(Ok(Some(found))) if *found >= number);
    let Some(Ok(_)) = &read else { return };
    let is_current = office
        .member()
        .is_some_and(|member| member.vfs().write_verifier() == verifier);
    if !is_there && broken == office.broken() && is_current {
        office.shared.fail(format!(
            "office {}: {number} was committed under one verifier, and {read:?} is there",
            office.number
        ));
    }
}

/// Has the owner publish, if this office is it.
pub async fn publish(office: &Arc<Office>) {
    let (Some(member), Some(term)) = (office.member(), office.term()) else {
        return;
    };
    if !term.is_owner() || !office.machine().is_running() {
        return;
    }
    let name = office.term_name(&member.status());
    let before = office.shared.ledger().unpublished.get(&name).map_or(0, Vec::len);
    let volume = term.volume().clone();
    let env = office.machine().env();
    let synced = env.spawn("sync", async move { volume.sync().await }).await;
    if let Ok(Ok(())) = synced {
        office.shared.count("commits");
        let now = office.env.now();
        let mut ledger = office.shared.ledger();
        // What was acknowledged before the call.
        let published: Vec<_> = match ledger.unpublished.get_mut(&name) {
            Some(unpublished) => unpublished.drain(..before.min(unpublished.len())).collect(),
            None => Vec::new(),
        };
        ledger
            .published
            .extend(published.into_iter().map(|acknowledged| (now, acknowledged)));
    }
}
