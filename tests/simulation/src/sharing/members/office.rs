//! An office: a machine with a member of the volume that lives from term to term, and the weather that it has to stand.

use super::{Shared, TermName};
use crate::sharing::world::{Line, Place, World};
use firn_env::{
    Env, Monotonic,
    sim::{Machine, Seeded},
};
use firn_session::{LockLimits, LockTable};
use firn_volume::{
    FollowOptions, Member, MemberOptions, MemberStatus, Parts, StaleReads, Term, TermEnd, VolumeConfig,
};
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// For so long an owner must have been unwell before it may be taken over: a minute of a heart that stands still, a beat before, and what is late.
const WELL_FOR: Duration = Duration::from_secs(50);

/// See the module.
pub struct Office {
    pub env: Env,
    pub world: Arc<World>,
    pub shared: Arc<Shared>,
    pub number: usize,
    pub options: MemberOptions,
    config: VolumeConfig,
    life: Mutex<Life>,
}

/// What changes with each start.
#[derive(Default)]
struct Life {
    member: Option<Member>,
    /// Of its clients; it begins empty.
    locks: Option<LockTable>,
    term: Option<Term>,
    incarnation: u64,
    broken: u64,
    /// When the heart was last kept from beating, by its machine or its line.
    unwell: Option<Monotonic>,
    is_cut_off: bool,
    /// When its line was cut last, and when it was well again.
    cut: Option<(Monotonic, Option<Monotonic>)>,
}

impl Office {
    pub fn new(
        env: &Env,
        world: Arc<World>,
        shared: Arc<Shared>,
        number: usize,
        random: &mut Seeded,
    ) -> Arc<Self> {
        let options = MemberOptions {
            follow: FollowOptions {
                freshness: *random.pick(&[
                    Duration::ZERO,
                    Duration::from_millis(20),
                    Duration::from_millis(500),
                ]),
                stale_reads: StaleReads::Wait,
            },
            hold: *random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
            ..MemberOptions::default()
        };
        let config = VolumeConfig {
            owner_name: format!("office{number}"),
            ..world.config.clone()
        };
        Arc::new(Self {
            env: env.clone(),
            world,
            shared,
            number,
            options,
            config,
            life: Mutex::default(),
        })
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().expect("no panic under this lock")
    }

    fn place(&self) -> &Place {
        self.world.place(self.number)
    }

    pub fn machine(&self) -> &Machine {
        &self.place().machine
    }

    pub fn parts(&self) -> Parts {
        self.world.parts(self.place())
    }

    pub fn config(&self) -> VolumeConfig {
        self.config.clone()
    }

    /// The member of the running incarnation.
    pub fn member(&self) -> Option<Member> {
        self.life().member.clone()
    }

    /// Its lock table, and which start made it.
    pub fn locks(&self) -> Option<(LockTable, u64)> {
        let life = self.life();
        life.locks.clone().map(|locks| (locks, life.incarnation))
    }

    /// When its line was cut last, and when it was well again.
    pub fn cut(&self) -> Option<(Monotonic, Option<Monotonic>)> {
        self.life().cut
    }

    /// The term at hand, if there is one.
    pub fn term(&self) -> Option<Term> {
        self.life().term.clone()
    }

    /// The owner's term that a member stands in, by name.
    pub fn term_name(&self, status: &MemberStatus) -> TermName {
        TermName {
            office: self.number,
            incarnation: self.life().incarnation,
            taken: status.taken,
        }
    }

    /// How often the volume was taken over from this office, over restarts.
    pub fn broken(&self) -> u64 {
        let life = self.life();
        let now = life.member.as_ref().map_or(0, |member| member.status().broken);
        life.broken + now
    }

    /// Starts the member on the running machine.
    pub fn start(self: &Arc<Self>) {
        let locks = LockTable::new(LockLimits::default());
        let (config, options) = (self.config.clone(), self.options.clone());
        let member = Member::new(self.parts(), config, options, &locks);
        {
            let mut life = self.life();
            let before = life.member.replace(member.clone());
            life.broken += before.map_or(0, |member| member.status().broken);
            life.locks = Some(locks);
            life.term = None;
            life.incarnation += 1;
        }
        let office = self.clone();
        let env = self.machine().env();
        drop(
            env.clone()
                .spawn("member", async move { office.live(&env, member).await }),
        );
    }

    async fn live(&self, env: &Env, member: Member) {
        let mut tries = 0_u64;
        loop {
            let term = match member.open().await {
                Ok(term) => term,
                Err(error) => {
                    tries += 1;
                    self.shared.count("openings that failed");
                    // An hour of tries, with a line that fails for minutes.
                    if tries > 3600 {
                        self.shared
                            .fail(format!("office {} does not open: {error}", self.number));
                        return;
                    }
                    env.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            tries = 0;
            self.note_salvages(&member);
            self.life().term = Some(term.clone());
            let name = self.term_name(&member.status());
            let is_owner = term.is_owner();
            let ended = member.run(&term).await;
            self.life().term = None;
            match ended {
                Ok(TermEnd::Given) => {
                    self.shared.ledger().publish(self.env.now(), name);
                    self.shared.count("handovers");
                }
                Ok(TermEnd::MayOwn) => {}
                Ok(TermEnd::Fenced) => {
                    self.shared.count("owners that were taken over");
                    let may_be = self.life().unwell.map(|at| self.env.now().since(at));
                    if may_be.is_none_or(|ago| ago > WELL_FOR + Duration::from_secs(70)) {
                        self.shared.fail(format!(
                            "office {} was taken over though it was well (unwell {may_be:?} ago)",
                            self.number
                        ));
                    }
                }
                Ok(TermEnd::Failed(why)) => {
                    self.shared.fail(format!(
                        "office {} (owner: {is_owner}) serves no more: {why}",
                        self.number
                    ));
                    return;
                }
                Err(error) => {
                    self.shared
                        .fail(format!("office {} cannot publish: {error}", self.number));
                    return;
                }
            }
        }
    }

    fn note_salvages(&self, member: &Member) {
        let mut ledger = self.shared.ledger();
        for salvaged in member.status().salvaged {
            ledger.paths.extend(salvaged.paths);
        }
    }

    fn set_line(&self, line: Line) {
        let before = self.life().is_cut_off;
        self.place().set_line(line);
        // A heart beats over a line that loses, and without the bucket.
        let is_cut_off = line == Line::NoTable;
        if before || is_cut_off {
            self.be_unwell();
        }
        let now = self.env.now();
        let mut life = self.life();
        life.cut = match (life.is_cut_off, is_cut_off, life.cut) {
            (false, true, _) => Some((now, None)),
            (true, false, Some((since, None))) => Some((since, Some(now))),
            (_, _, cut) => cut,
        };
        life.is_cut_off = is_cut_off;
    }

    fn be_unwell(&self) {
        self.life().unwell = Some(self.env.now());
    }

    /// All is well from now on.
    pub fn heal(self: &Arc<Self>) {
        self.machine().faults().disarm();
        if !self.machine().is_running() {
            self.be_unwell();
            self.machine().restart();
            self.start();
        }
        self.set_line(Line::Fair);
    }

    fn lose_power(self: &Arc<Self>) {
        if self.machine().is_running() {
            self.machine().crash();
        }
        self.shared.count("power cuts");
        self.be_unwell();
    }
}

/// What happens to an office, until the history is over.
pub async fn weather(office: Arc<Office>, mut random: Seeded) {
    let env = office.env.clone();
    let is_over = || office.shared.ledger().is_over;
    loop {
        let fair = random.duration(Duration::from_secs(5), Duration::from_secs(150));
        env.sleep(fair).await;
        if is_over() {
            return;
        }
        let lasts = match random.below(2) {
            0 => random.duration(Duration::from_secs(60), Duration::from_secs(200)),
            _ => random.duration(Duration::from_secs(1), Duration::from_secs(20)),
        };
        match random.below(8) {
            0 => office.set_line(Line::Rough),
            1 => office.set_line(Line::NoStore),
            2 | 3 => office.set_line(Line::NoTable),
            4 => {
                office.lose_power();
            }
            5 => {
                office.machine().crash_at_any(random.between(1, 60));
                office.be_unwell();
            }
            6 => {
                let seconds = random.between(0, 240) as i64 - 120;
                office.machine().jump_wall(seconds * 1_000_000_000);
                office.shared.count("clock jumps");
            }
            _ => {}
        }
        env.sleep(lasts).await;
        if is_over() {
            return;
        }
        office.heal();
    }
}
