//! The engines of a queue pair, by its type, behind one set of calls.

use transport::Sender;
use transport::{
    Ctx, Datagrams, DropReason, RcParams, Receiver, RecvQueue, RecvWqe, Requester, Responder, SendWqe,
};
use wire::batch::TxBatch;
use wire::opcode::Transport;
use wire::{Instant, NetHeader, Packet, Qpn};

use crate::state::QpType;

/// What moves the packets of a queue pair.
#[derive(Debug)]
pub(crate) enum Engines {
    /// Reliable connection.
    Rc(Box<Requester>, Box<Responder>),
    /// The sending half of a reliable connection: an XRC initiator.
    XrcIni(Box<Requester>),
    /// Its receiving half: an XRC target.
    XrcTgt(Box<Responder>),
    /// Unreliable connection.
    Uc(Box<Sender>, Box<Receiver>),
    /// Unreliable datagrams.
    Ud(Box<Sender>, Box<Datagrams>),
}

impl Engines {
    pub(crate) fn new(qp_type: QpType, params: &RcParams) -> Self {
        match qp_type {
            QpType::Uc => {
                Self::Uc(Box::new(Sender::new(Transport::Uc, params)), Box::new(Receiver::new(params)))
            }
            QpType::Ud | QpType::Gsi => {
                Self::Ud(Box::new(Sender::new(Transport::Ud, params)), Box::default())
            }
            QpType::XrcIni => Self::XrcIni(Box::new(Requester::new(params))),
            QpType::XrcTgt => Self::XrcTgt(Box::new(Responder::new(params))),
            QpType::Rc => Self::Rc(Box::new(Requester::new(params)), Box::new(Responder::new(params))),
        }
    }

    /// The receiving half starts: its first PSN is known.
    pub(crate) fn start_receiving(&mut self, params: &RcParams) {
        match self {
            Self::Rc(_, responder) | Self::XrcTgt(responder) => **responder = Responder::new(params),
            Self::Uc(_, receiver) => **receiver = Receiver::new(params),
            Self::Ud(..) | Self::XrcIni(_) => {}
        }
    }

    /// The sending half starts: its first PSN is known.
    pub(crate) fn start_sending(&mut self, params: &RcParams) {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => **requester = Requester::new(params),
            Self::Uc(sender, _) => **sender = Sender::new(Transport::Uc, params),
            Self::Ud(sender, _) => **sender = Sender::new(Transport::Ud, params),
            Self::XrcTgt(_) => {}
        }
    }

    pub(crate) fn post(&mut self, wqe: SendWqe) {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.post(wqe),
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.post(wqe),
            // Posting is refused.
            Self::XrcTgt(_) => {}
        }
    }

    /// Sends that have not completed.
    pub(crate) fn sends(&self) -> usize {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.len(),
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.len(),
            Self::XrcTgt(_) => 0,
        }
    }

    pub(crate) fn has_replies(&self) -> bool {
        matches!(self, Self::Rc(_, responder) | Self::XrcTgt(responder) if responder.has_replies())
    }

    /// Whether the next answer is READ data.
    pub(crate) fn answers_with_data(&self) -> bool {
        matches!(self, Self::Rc(_, responder) | Self::XrcTgt(responder) if responder.answers_with_data())
    }

    /// Whether a packet of the peer is missing, and it has been told.
    pub(crate) fn is_in_gap(&self) -> bool {
        matches!(self, Self::Rc(_, responder) | Self::XrcTgt(responder) if responder.is_in_gap())
    }

    /// What sends reliably, if anything does.
    pub(crate) fn requester(&self) -> Option<&Requester> {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => Some(requester),
            Self::Uc(..) | Self::Ud(..) | Self::XrcTgt(_) => None,
        }
    }

    fn requester_mut(&mut self) -> Option<&mut Requester> {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => Some(requester),
            Self::Uc(..) | Self::Ud(..) | Self::XrcTgt(_) => None,
        }
    }

    /// The numbers of repeats have changed.
    pub(crate) fn reload_retries(&mut self, params: &RcParams) {
        if let Some(requester) = self.requester_mut() {
            requester.reload_retries(params);
        }
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.set_draining(draining),
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.set_draining(draining),
            Self::XrcTgt(_) => {}
        }
    }

    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.is_drained(),
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.is_drained(),
            Self::XrcTgt(_) => true,
        }
    }

    /// Completes all sends with a flush error.
    pub(crate) fn flush_sends(&mut self, ctx: &mut Ctx<'_>) {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.flush(ctx),
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.flush(ctx),
            Self::XrcTgt(_) => {}
        }
    }

    /// The queue pair fails: gives the receive back that a message had begun to use.
    pub(crate) fn abandon(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Rc(_, responder) | Self::XrcTgt(responder) => {
                let unfinished = responder.take_unfinished();
                responder.abandon();
                unfinished
            }
            Self::Uc(_, receiver) => receiver.take_unfinished(),
            Self::Ud(_, datagrams) => datagrams.take_unfinished(),
            Self::XrcIni(_) => None,
        }
    }

    pub(crate) fn on_packet(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        match self {
            // Rule R-ADM-6.
            Self::Rc(_, responder) if packet.info().kind.is_request() => {
                responder.on_request(ctx, recv, packet)
            }
            // Admission has seen to it that the other half gets nothing.
            Self::XrcTgt(responder) => responder.on_request(ctx, recv, packet),
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.on_response(ctx, packet),
            Self::Uc(_, receiver) => receiver.on_packet(ctx, recv, packet),
            Self::Ud(_, datagrams) => datagrams.on_packet(ctx, recv, packet),
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.requester()?.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(requester) = self.requester_mut() {
            requester.handle_timeout(ctx);
        }
    }

    /// Where the next packet goes: datagrams say so themselves, all others go to `peer`.
    pub(crate) fn next_header(&self, peer: Option<NetHeader>) -> Option<NetHeader> {
        match self {
            Self::Ud(sender, _) => sender.oldest()?.datagram.as_ref().map(|to| to.net),
            _ => peer,
        }
    }

    /// The queue pair that the next datagram is for; connections have one peer.
    pub(crate) fn next_dest(&self) -> Option<Qpn> {
        match self {
            Self::Ud(sender, _) => Some(sender.oldest()?.datagram.as_ref()?.qpn),
            _ => None,
        }
    }

    /// Length of the next answer to send.
    pub(crate) fn prepare_reply(&mut self, ctx: &mut Ctx<'_>) -> Option<usize> {
        match self {
            // Rule R-RSP-39: answers leave whatever becomes of requests.
            Self::Rc(_, responder) | Self::XrcTgt(responder) => responder.prepare(ctx),
            Self::Uc(..) | Self::Ud(..) | Self::XrcIni(_) => None,
        }
    }

    /// Writes the answer that was announced; false where there is none after all.
    pub(crate) fn write_reply(&mut self, ctx: &mut Ctx<'_>, body: &mut [u8]) -> bool {
        match self {
            Self::Rc(_, responder) | Self::XrcTgt(responder) => responder.write(ctx, body),
            Self::Uc(..) | Self::Ud(..) | Self::XrcIni(_) => false,
        }
    }

    /// Length of the next request to send on the way `net`, to queue pairs of `lane`.
    pub(crate) fn prepare_send(&mut self, ctx: &mut Ctx<'_>, net: &NetHeader, lane: usize) -> Option<usize> {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.prepare(ctx),
            Self::XrcTgt(_) => None,
            Self::Uc(sender, _) => sender.prepare(ctx),
            Self::Ud(sender, _) => {
                let to = sender.oldest()?.datagram.as_ref()?;
                let same_way = to.net == *net && TxBatch::lane(to.qpn) == lane;
                if same_way { sender.prepare(ctx) } else { None }
            }
        }
    }

    /// PSNs in flight, which the device bounds for all its reliable queue pairs together.
    pub(crate) fn in_flight(&self) -> u32 {
        self.requester().map_or(0, Requester::in_flight)
    }

    /// PSNs that the request takes that was announced; 0 of what nobody bounds.
    pub(crate) fn next_span(&self) -> u32 {
        self.requester().map_or(0, Requester::next_span)
    }

    /// Whether something is in flight to a peer that did not answer in time.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.requester().is_some_and(Requester::is_in_doubt)
    }

    /// Whether the request that was written last has to ask for an ACK after all.
    pub(crate) fn asks_again(&mut self) -> bool {
        self.requester_mut().is_some_and(Requester::asks_again)
    }

    /// Whether a message has left that did not ask for an ACK, and none has since.
    pub(crate) fn has_put_off(&self) -> bool {
        self.requester().is_some_and(Requester::has_put_off)
    }

    /// Whether a request is sent again so that it asks for an ACK.
    pub(crate) fn asks_for_what_was_put_off(&mut self) -> bool {
        self.requester_mut().is_some_and(Requester::asks_for_what_was_put_off)
    }

    /// Writes the request that was announced; false where its memory has gone.
    pub(crate) fn write_send(&mut self, ctx: &mut Ctx<'_>, body: &mut [u8]) -> bool {
        match self {
            Self::Rc(requester, _) | Self::XrcIni(requester) => requester.write(ctx, body),
            Self::XrcTgt(_) => false,
            Self::Uc(sender, _) | Self::Ud(sender, _) => sender.write(ctx, body),
        }
    }
}
