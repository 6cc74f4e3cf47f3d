//! The part of the page that the paper has no counterpart of: offices that write one volume at the same moment.

use super::{ALONE_GOAL, Page, short};
use crate::sharing::{BY_INODE, MODES, NEAR_LINES_MS, actions, contention, money, table3};
use anyhow::Result;

/// Two offices that make files in one directory change places so often a second, at least.
const ALTERNATIONS_GOAL: f64 = 1.5;
/// Eight offices, each in its own directory, do so many times what one does.
const EIGHT_GOAL: f64 = 7.0;
/// Who commits least of so many that commit all the time has this part of an equal share.
const SHARE_GOAL: f64 = 0.25;

impl Page<'_> {
    pub(super) fn by_inode(&mut self) -> Result<()> {
        self.line("\n## Offices that write at the same moment\n");
        self.line(
            "A volume with leases by inode ([sharing.md](sharing.md#two-offices-write-the-same-volume-at-the-same-moment)): nobody owns it, and each office holds what its clients change. Figure 9 above has\n\
             how soon one office sees what another saved.\n",
        );
        self.alone()?;
        self.line("\n### An hour of two offices\n");
        self.line("As Figure 11(a). *Contending*: each saves a document of its own. *One document*: both save the same. *Waits*: changes that had to get a lease first.\n");
        self.hours_of(&BY_INODE[0], &money::HOURS_BY_INODE, "waits")?;
        self.one_directory()?;
        self.own_directories()?;
        self.committing()?;
        self.behind()
    }

    fn alone(&mut self) -> Result<()> {
        self.line("### An office alone\n");
        self.line("Seconds, as in Table 3 and Figure 8.\n");
        self.line("| | private | by inode, journal | by inode, cloud | by inode, journal / private |");
        self.line("|---|---|---|---|---|");
        let private = table3::measure(self.cells, &MODES[0])?;
        let [journal, cloud] = [
            table3::measure(self.cells, &BY_INODE[0])?,
            table3::measure(self.cells, &BY_INODE[1])?,
        ];
        let mut is_alike = true;
        for program in table3::PROGRAMS {
            let [private, journal, cloud] =
                [&private, &journal, &cloud].map(|column| column.seconds[program]);
            let ratio = journal / private;
            is_alike &= ratio <= ALONE_GOAL;
            let [private, journal, cloud] = [private, journal, cloud].map(short);
            self.line(format!(
                "| {program} | {private} | {journal} | {cloud} | {ratio:.2} |"
            ));
        }
        let private = actions::measure(self.cells, &MODES[0], false)?;
        let journal = actions::measure(self.cells, &BY_INODE[0], false)?;
        let cloud = actions::measure(self.cells, &BY_INODE[1], false)?;
        for (what, of) in [
            ("a document: open", [private.open, journal.open, cloud.open]),
            ("save", [private.save, journal.save, cloud.save]),
            ("close", [private.close, journal.close, cloud.close]),
        ] {
            let [private, journal, cloud] = of.map(short);
            self.line(format!("| {what} | {private} | {journal} | {cloud} | |"));
        }
        self.goals.push((
            format!(
                "an office alone in a volume with leases by inode within {:.0} % of a private one, each program of Table 3",
                (ALONE_GOAL - 1.0) * 100.0
            ),
            is_alike,
        ));
        Ok(())
    }

    fn one_directory(&mut self) -> Result<()> {
        self.line("\n### Two offices make files in one directory\n");
        self.line(format!(
            "For a minute, at {} ms to bucket and table. An alternation is a file of one office after a file of the other.\n",
            NEAR_LINES_MS.0
        ));
        self.line(
            "| pause after each file | files of each | alternations a second | longest wait for one, s |",
        );
        self.line("|---|---|---|---|");
        for pause_ms in contention::PAUSES_MS {
            let measured = contention::one_directory(self.cells, pause_ms)?;
            let files: Vec<String> = measured.files.iter().map(u64::to_string).collect();
            self.line(format!(
                "| {pause_ms} ms | {} | {} | {} |",
                files.join(", "),
                short(measured.alternations_per_second),
                short(measured.longest_wait_s)
            ));
            if pause_ms == contention::PAUSES_MS[0] {
                self.goals.push((
                    format!(
                        "two offices in one directory: {} alternations a second, at least {ALTERNATIONS_GOAL}",
                        short(measured.alternations_per_second)
                    ),
                    measured.alternations_per_second >= ALTERNATIONS_GOAL,
                ));
            }
        }
        Ok(())
    }

    fn own_directories(&mut self) -> Result<()> {
        let [one, eight] = [
            contention::own_directories(self.cells, 1)?,
            contention::own_directories(self.cells, 8)?,
        ];
        self.line("\n### Each in its own directory\n");
        self.line(format!(
            "Files of 4 KiB, as many as can be in a minute, until all are published (level 2): {} a second by one office, {} by eight, {:.2} times as many.",
            short(one),
            short(eight),
            eight / one
        ));
        self.goals.push((
            format!(
                "eight offices, each in its own directory: {:.2} times one, at least {EIGHT_GOAL}",
                eight / one
            ),
            eight >= EIGHT_GOAL * one,
        ));
        Ok(())
    }

    fn committing(&mut self) -> Result<()> {
        self.line("\n### Offices that commit all the time\n");
        self.line("Each saves a file of its own again and again for a minute, and each save is answered when the others can see it (level 2).\n");
        self.line(
            "| offices | saves a second | the least and the most of one office | roots built | in vain |",
        );
        self.line("|---|---|---|---|---|");
        for offices in contention::COMMITTING {
            let measured = contention::committing(self.cells, offices)?;
            let sum: u64 = measured.saves.iter().sum();
            let least = measured.saves.iter().min().copied().unwrap_or(0);
            let most = measured.saves.iter().max().copied().unwrap_or(0);
            self.line(format!(
                "| {offices} | {} | {least}, {most} | {} | {} |",
                short(sum as f64 / 60.0),
                measured.builds,
                measured.builds.saturating_sub(sum)
            ));
            if Some(&offices) == contention::COMMITTING.last() {
                let share = least as f64 * offices as f64 / sum.max(1) as f64;
                self.goals.push((
                    format!(
                        "of {offices} offices that commit all the time none starves: the one with the least has {} of an equal share, at least {SHARE_GOAL}",
                        short(share)
                    ),
                    share >= SHARE_GOAL,
                ));
            }
        }
        Ok(())
    }

    fn behind(&mut self) -> Result<()> {
        self.line("\n### A line behind a backlog\n");
        self.line(format!(
            "An office has so much to upload, over {} Mbit/s, and another one changes a file of one line that this one holds.\n",
            contention::SLOW_UPLINK_BITS_PER_SECOND / 1_000_000
        ));
        self.line("| to upload | which takes, s | the change waits, s |");
        self.line("|---|---|---|");
        for mib in contention::BACKLOGS_MIB {
            let waited = contention::behind(self.cells, mib)?;
            let uploads = (mib << 20) as f64 * 8.0 / contention::SLOW_UPLINK_BITS_PER_SECOND as f64;
            self.line(format!("| {mib} MiB | {} | {} |", short(uploads), short(waited)));
        }
        Ok(())
    }
}
