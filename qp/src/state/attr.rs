//! The attributes of a queue pair and their mask, as verbs has them; the values each may take; and the errors of a
//! modification.

use core::fmt;

use bitflags::bitflags;
use transport::Access;
use wire::num::{Gid, Mtu, Psn, QKey, Qpn};
use wire::syndrome::RnrTimer;

use super::table::check_transition;
use super::{QpState, QpType};

bitflags! {
    /// Which attributes a modification sets, with the bits of verbs (rule R-QPS-15).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AttrMask: u32 {
        /// [`QpAttr::state`].
        const STATE = 1 << 0;
        /// [`QpAttr::cur_state`].
        const CUR_STATE = 1 << 1;
        /// [`QpAttr::en_sqd_async_notify`].
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttr::access`].
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttr::pkey_index`].
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttr::port`].
        const PORT = 1 << 5;
        /// [`QpAttr::qkey`].
        const QKEY = 1 << 6;
        /// [`QpAttr::addr`].
        const AV = 1 << 7;
        /// [`QpAttr::path_mtu`].
        const PATH_MTU = 1 << 8;
        /// [`QpAttr::timeout`].
        const TIMEOUT = 1 << 9;
        /// [`QpAttr::retry_cnt`].
        const RETRY_CNT = 1 << 10;
        /// [`QpAttr::rnr_retry`].
        const RNR_RETRY = 1 << 11;
        /// [`QpAttr::rq_psn`].
        const RQ_PSN = 1 << 12;
        /// [`QpAttr::max_rd_atomic`].
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// [`QpAttr::alt_addr`], [`QpAttr::alt_port`], [`QpAttr::alt_pkey_index`], [`QpAttr::alt_timeout`].
        const ALT_PATH = 1 << 14;
        /// [`QpAttr::min_rnr_timer`].
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttr::sq_psn`].
        const SQ_PSN = 1 << 16;
        /// [`QpAttr::max_dest_rd_atomic`].
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpAttr::path_mig_state`].
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes. No transition takes them: queues are not resized.
        const CAP = 1 << 19;
        /// [`QpAttr::dest_qpn`].
        const DEST_QPN = 1 << 20;
        /// A rate in kbit/s. No transition of these types takes it.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Lists the names, for messages: `TIMEOUT, RETRY_CNT`.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (name, _) in self.iter_names() {
            f.write_str(if first { "" } else { ", " })?;
            f.write_str(name)?;
            first = false;
        }
        let unknown = self.bits() & !Self::all().bits();
        if unknown != 0 {
            write!(f, "{}unknown bits {unknown:#x}", if first { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Where a queue pair's packets go, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of our own GID in the port's table.
    pub sgid_index: u8,
    /// Time to live; 0 stands for 64 (rule R-ADR-13).
    pub hop_limit: u8,
    /// TOS byte, ECN bits included (rule R-ADR-12).
    pub traffic_class: u8,
    /// Flow label, 20 bits; 0 derives the source port from the QPNs (rule R-ADR-6).
    pub flow_label: u32,
    /// Service level: the priority of a VLAN tag, 3 bits.
    pub sl: u8,
}

impl Default for AddressVector {
    fn default() -> Self {
        Self { dgid: Gid::ZERO, sgid_index: 0, hop_limit: 64, traffic_class: 0, flow_label: 0, sl: 0 }
    }
}

/// State of path migration, with the numbers of verbs. It is kept and given back; paths do not migrate
/// (rule R-QPS-26).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PathMigState {
    /// The normal state, and the one that the wire shows (rule R-WIR-34).
    #[default]
    Migrated = 0,
    /// The alternate path is to be loaded.
    Rearm = 1,
    /// Ready to migrate.
    Armed = 2,
}

/// Attributes of a queue pair: what a modification sets and a query gives back (rule R-QPS-16). Which fields of a
/// modification count is said by its [`AttrMask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to enter, or the state it is in.
    pub state: QpState,
    /// The state that the caller believes the queue pair to be in (rule R-QPS-9).
    pub cur_state: QpState,
    /// Raise SQ_DRAINED when a drain is complete.
    pub en_sqd_async_notify: bool,
    /// What the peer may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC.
    pub access: Access,
    /// Index in the P_Key table.
    pub pkey_index: u16,
    /// Port number, from 1.
    pub port: u8,
    /// Queue key of UD.
    pub qkey: QKey,
    /// The peer's address.
    pub addr: AddressVector,
    /// Payload of a full packet.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics that may be open as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have open.
    pub max_dest_rd_atomic: u8,
    /// Wait that an RNR NAK asks of the peer.
    pub min_rnr_timer: RnrTimer,
    /// ACK timer code: 4.096 µs × 2^timeout, 0 for never; at most 31 (rule R-REQ-20).
    pub timeout: u8,
    /// Repeats after a timeout or a sequence NAK without progress; at most 7 (rule R-REQ-24).
    pub retry_cnt: u8,
    /// Repeats after RNR NAKs without progress; at most 7, which never runs out (rule R-REQ-25).
    pub rnr_retry: u8,
    /// Alternate path: the peer's address.
    pub alt_addr: AddressVector,
    /// Alternate path: P_Key index.
    pub alt_pkey_index: u16,
    /// Alternate path: port number.
    pub alt_port: u8,
    /// Alternate path: ACK timer code, at most 31.
    pub alt_timeout: u8,
    /// State of path migration.
    pub path_mig_state: PathMigState,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            en_sqd_async_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: QKey::new(0),
            addr: AddressVector::default(),
            path_mtu: Mtu::B1024,
            dest_qpn: Qpn::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::default(),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            alt_addr: AddressVector::default(),
            alt_pkey_index: 0,
            alt_port: 0,
            alt_timeout: 0,
            path_mig_state: PathMigState::Migrated,
        }
    }
}

/// What the device allows: the limits that attribute values are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModifyLimits {
    /// Largest path MTU of the port.
    pub active_mtu: Mtu,
    /// Largest [`QpAttr::max_rd_atomic`].
    pub max_rd_atomic: u8,
    /// Largest [`QpAttr::max_dest_rd_atomic`].
    pub max_dest_rd_atomic: u8,
    /// Entries of the GID table.
    pub gid_table_len: usize,
    /// Entries of the P_Key table.
    pub pkey_table_len: usize,
    /// Number of ports.
    pub ports: u8,
}

/// Why a queue pair was not modified. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// This type of queue pair cannot go there from where it is.
    #[error("{qp_type} queue pairs cannot go from {from} to {to}")]
    NoTransition {
        /// Type of the queue pair.
        qp_type: QpType,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The transition needs attributes that the mask lacks.
    #[error("{qp_type} {from} to {to} needs {missing}")]
    Missing {
        /// Type of the queue pair.
        qp_type: QpType,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// The mask has attributes that the transition does not take.
    #[error("{qp_type} {from} to {to} does not take {extra}")]
    NotAllowed {
        /// Type of the queue pair.
        qp_type: QpType,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// What does not belong.
        extra: AttrMask,
    },
    /// The caller was wrong about the state the queue pair is in.
    #[error("cur_state is given as {given}, but the queue pair is in {actual}")]
    WrongCurState {
        /// State in the attributes.
        given: QpState,
        /// State of the queue pair.
        actual: QpState,
    },
    /// A number is too large.
    #[error("{attribute} is {value}, at most {max} is possible")]
    TooLarge {
        /// Name of the attribute.
        attribute: &'static str,
        /// What was asked for.
        value: u32,
        /// What is possible.
        max: u32,
    },
    /// The path MTU does not fit the port.
    #[error("path_mtu is {path_mtu}, but the port's active MTU is {active_mtu}")]
    MtuTooLarge {
        /// What was asked for.
        path_mtu: Mtu,
        /// What the port has.
        active_mtu: Mtu,
    },
    /// There is no such port.
    #[error("there is no port {port}; ports are 1 to {ports}")]
    NoSuchPort {
        /// What was asked for.
        port: u8,
        /// Number of ports.
        ports: u8,
    },
}

impl ModifyError {
    /// The error number that verbs returns for it: EINVAL, whatever the reason.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        22
    }
}

/// The RNR timer of a code as verbs passes it.
///
/// # Errors
/// [`ModifyError::TooLarge`] where the code is above 31.
pub fn rnr_timer(code: u8) -> Result<RnrTimer, ModifyError> {
    RnrTimer::new(code).ok_or(ModifyError::TooLarge {
        attribute: "min_rnr_timer",
        value: code.into(),
        max: 31,
    })
}

impl QpAttr {
    /// The attributes of a queue pair of `qp_type`, now `self`, after it was modified by the attributes of `new`
    /// that `mask` names. A mask without STATE keeps the state.
    ///
    /// # Errors
    /// Why the modification is not possible (rules R-QPS-2, R-QPS-9, R-QPS-14, R-QPS-17).
    pub fn modified(
        &self,
        qp_type: QpType,
        new: &Self,
        mask: AttrMask,
        limits: &ModifyLimits,
    ) -> Result<Self, ModifyError> {
        let to = if mask.contains(AttrMask::STATE) { new.state } else { self.state };
        check_transition(qp_type, self.state, to, mask)?;
        if mask.contains(AttrMask::CUR_STATE) && new.cur_state != self.state {
            return Err(ModifyError::WrongCurState { given: new.cur_state, actual: self.state });
        }
        new.check_values(mask, limits)?;
        let mut merged = *self;
        merged.take(new, mask);
        merged.state = to;
        merged.cur_state = to;
        Ok(merged)
    }

    fn check_values(&self, mask: AttrMask, limits: &ModifyLimits) -> Result<(), ModifyError> {
        let last = |len: usize| u32::try_from(len.saturating_sub(1)).unwrap_or(u32::MAX);
        let sgid_max = last(limits.gid_table_len);
        let pkey_max = last(limits.pkey_table_len);
        // Rules R-QPS-14, R-QPS-17 and R-ADR-15.
        for (bit, attribute, value, max) in [
            (AttrMask::PKEY_INDEX, "pkey_index", u32::from(self.pkey_index), pkey_max),
            (AttrMask::AV, "sgid_index", self.addr.sgid_index.into(), sgid_max),
            (AttrMask::AV, "flow_label", self.addr.flow_label, 0x000F_FFFF),
            (AttrMask::AV, "sl", self.addr.sl.into(), 7),
            (AttrMask::TIMEOUT, "timeout", self.timeout.into(), 31),
            (AttrMask::RETRY_CNT, "retry_cnt", self.retry_cnt.into(), 7),
            (AttrMask::RNR_RETRY, "rnr_retry", self.rnr_retry.into(), 7),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                "max_rd_atomic",
                self.max_rd_atomic.into(),
                limits.max_rd_atomic.into(),
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                self.max_dest_rd_atomic.into(),
                limits.max_dest_rd_atomic.into(),
            ),
            (AttrMask::ALT_PATH, "alt_timeout", self.alt_timeout.into(), 31),
            (AttrMask::ALT_PATH, "alt_pkey_index", self.alt_pkey_index.into(), pkey_max),
            (AttrMask::ALT_PATH, "alternate sgid_index", self.alt_addr.sgid_index.into(), sgid_max),
        ] {
            if mask.contains(bit) && value > max {
                return Err(ModifyError::TooLarge { attribute, value, max });
            }
        }
        // Rule R-ADR-2.
        if mask.contains(AttrMask::PATH_MTU) && self.path_mtu > limits.active_mtu {
            return Err(ModifyError::MtuTooLarge { path_mtu: self.path_mtu, active_mtu: limits.active_mtu });
        }
        for (bit, port) in [(AttrMask::PORT, self.port), (AttrMask::ALT_PATH, self.alt_port)] {
            if mask.contains(bit) && !(1..=limits.ports).contains(&port) {
                return Err(ModifyError::NoSuchPort { port, ports: limits.ports });
            }
        }
        Ok(())
    }

    fn take(&mut self, new: &Self, mask: AttrMask) {
        macro_rules! copy {
            ($($bit:ident: $($field:ident),+;)*) => {
                $( if mask.contains(AttrMask::$bit) { $( self.$field = new.$field; )+ } )*
            };
        }
        copy! {
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            QKEY: qkey;
            AV: addr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_addr, alt_pkey_index, alt_port, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qpn;
        }
    }
}
