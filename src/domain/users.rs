//! The users that programs run as. A group has the number of its user.

use std::{fmt, ops::RangeInclusive, str::FromStr};

/// The range where none is set. systemd lists 65536 to 524287 as not used (UIDS-GIDS.md), and shadow gives users their
/// subordinate ids from 100000 on. Our runner images name these users.
pub const DEFAULT_RANGE: RangeInclusive<u32> = 70_000..=70_999;

/// The setting: whether conversations have users of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRange {
    /// The default range, where the server can use it.
    Automatic,
    /// All programs run as one user.
    Off,
    /// A range: neither empty nor with root.
    Is(RangeInclusive<u32>),
}

/// What is wrong with the text of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a range of user ids without 0, such as 70000-70999, or `off`")]
pub struct UserRangeError;

impl FromStr for UserRange {
    type Err = UserRangeError;

    fn from_str(text: &str) -> Result<Self, UserRangeError> {
        match text {
            "" => return Ok(Self::Automatic),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let (first, last) = text.split_once('-').ok_or(UserRangeError)?;
        let id = |text: &str| text.parse().map_err(|_| UserRangeError);
        let range = id(first)?..=id(last)?;
        // The last number means "no user" to the kernel.
        let is_sound = *range.start() > 0 && *range.end() < u32::MAX && !range.is_empty();
        if is_sound { Ok(Self::Is(range)) } else { Err(UserRangeError) }
    }
}

/// The users that programs run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerUsers {
    /// The user where conversations have none of their own.
    pub usual: u32,
    /// The first and the last.
    range: Option<(u32, u32)>,
}

impl RunnerUsers {
    /// One user for all programs.
    pub const fn one(uid: u32) -> Self {
        Self { usual: uid, range: None }
    }

    /// A user for each conversation; those that had the usual one keep it.
    pub fn each(usual: u32, range: RangeInclusive<u32>) -> Self {
        Self { usual, range: Some(range.into_inner()) }
    }

    pub fn contains(&self, uid: u32) -> bool {
        uid == self.usual || self.range.is_some_and(|(first, last)| (first..=last).contains(&uid))
    }

    /// The user of a new folder. Two folders have the same one when their numbers differ by a multiple of the length
    /// of the range.
    pub fn of_folder(&self, number: u64) -> u32 {
        let Some((first, last)) = self.range else { return self.usual };
        let users = u64::from(last - first) + 1;
        first + u32::try_from(number % users).unwrap_or(0)
    }
}

impl fmt::Display for RunnerUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some((first, last)) => write!(f, "{} or {first} to {last}", self.usual),
            None => write!(f, "{}", self.usual),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_the_settings_is_read() {
        assert_eq!("".parse(), Ok(UserRange::Automatic));
        assert_eq!("off".parse(), Ok(UserRange::Off));
        assert_eq!("7-9".parse(), Ok(UserRange::Is(7..=9)));
        assert_eq!("7-7".parse(), Ok(UserRange::Is(7..=7)));
        for wrong in ["7", "9-7", "0-7", "-7", "7-", "7-9-11", "7-4294967295", "70000-99999999999", "on", "7 - 9"] {
            assert_eq!(wrong.parse::<UserRange>(), Err(UserRangeError), "{wrong:?}");
        }
    }

    #[test]
    fn neighbouring_folders_have_different_users_of_the_range() {
        let users = RunnerUsers::each(1000, 70_000..=70_002);
        let given: Vec<u32> = (4..8).map(|number| users.of_folder(number)).collect();
        assert_eq!(given, [70_001, 70_002, 70_000, 70_001]);
        assert!(given.iter().all(|uid| users.contains(*uid)) && users.contains(1000));
        assert!(!users.contains(0) && !users.contains(69_999) && !users.contains(70_003));
        assert_eq!(RunnerUsers::one(7).of_folder(u64::MAX), 7);
        assert_eq!(RunnerUsers::each(1, 1..=u32::MAX - 1).of_folder(u64::from(u32::MAX) - 2), u32::MAX - 1);
    }
}
