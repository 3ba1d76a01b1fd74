//! Brings a queue pair to RTS.

use qp::{AddressVector, AttrMask, ModifyQpError, Nic, QpAttr, QpState, QpType};
use transport::Access;
use wire::{Gid, Instant, Mtu, Psn, Qpn, RnrTimer};

/// What the two ends of a connection agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// First PSN of the first and of the second end.
    pub(crate) psns: [u32; 2],
    pub(crate) access: Access,
    pub(crate) traffic_class: u8,
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            psns: [0x00_1000, 0xAB_CDEF],
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL,
            traffic_class: 0,
        }
    }
}

impl Conn {
    /// The attributes and masks of the three steps to RTS, for the end whose first PSN is `sq_psn`.
    pub(crate) fn steps(
        &self,
        qp_type: QpType,
        peer: (Gid, Qpn),
        sq_psn: Psn,
        rq_psn: Psn,
    ) -> [(QpAttr, AttrMask); 3] {
        let attr = QpAttr {
            access: self.access,
            addr: AddressVector {
                dgid: peer.0,
                traffic_class: self.traffic_class,
                ..AddressVector::default()
            },
            path_mtu: self.mtu,
            dest_qpn: peer.1,
            rq_psn,
            sq_psn,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(self.min_rnr_timer).expect("a timer code of five bits"),
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            ..QpAttr::default()
        };
        [QpState::Init, QpState::Rtr, QpState::Rts]
            .map(|state| (QpAttr { state, ..attr }, AttrMask::to_enter(qp_type, state)))
    }

    /// Takes `qpn` from RESET to RTS, whichever connected type it is of.
    pub(crate) fn establish(
        &self,
        nic: &mut Nic,
        now: Instant,
        qpn: Qpn,
        peer: (Gid, Qpn),
        psns: [u32; 2],
    ) -> Result<(), ModifyQpError> {
        let [sq_psn, rq_psn] = psns.map(Psn::new);
        let qp_type = nic.query_qp(qpn).map_or(QpType::Rc, |(_, init)| init.qp_type);
        self.steps(qp_type, peer, sq_psn, rq_psn)
            .into_iter()
            .try_for_each(|(attr, mask)| nic.modify_qp(now, qpn, &attr, mask))
    }
}
