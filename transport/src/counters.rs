//! Counters, named as mlx5 and rxe name their `hw_counters`.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// Every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received for this device, dropped ones included.
    rcvd_pkts,
    /// WRITE requests received.
    rx_write_requests,
    /// READ requests received.
    rx_read_requests,
    /// Atomic requests received.
    rx_atomic_requests,
    /// Requests refused for lack of a receive work request.
    out_of_buffer,
    /// Request packets that came too early: one before them is missing.
    out_of_sequence,
    /// Request packets that had been executed before.
    duplicate_request,
    /// RNR NAKs sent.
    send_rnr_err,
    /// RNR NAKs received while retries were left.
    rnr_nak_retry_err,
    /// Sequence NAKs received while retries were left.
    packet_seq_err,
    /// Answers that passed over a READ or atomic whose own answer is missing.
    implied_nak_seq_err,
    /// ACK timeouts while retries were left.
    local_ack_timeout_err,
    /// Messages longer than the receive work request.
    resp_local_length_error,
    /// Completions in error, as responder.
    resp_cqe_error,
    /// Completions in error, as requester.
    req_cqe_error,
    /// Flushed receive work requests.
    resp_cqe_flush_error,
    /// Flushed send work requests.
    req_cqe_flush_error,
    /// NAKs "invalid request" received.
    req_remote_invalid_request,
    /// NAKs "remote access error" received.
    req_remote_access_errors,
    /// NAKs "remote access error" sent.
    resp_remote_access_errors,
    /// Connections given up for lack of an answer.
    req_transport_retries_exceeded,
    /// Connections given up for RNR NAKs.
    req_rnr_retries_exceeded,
    /// Packets with a wrong ICRC.
    rx_icrc_encapsulated,
    /// Packets taken with half of the ICRC as proof: their IPv4 identification was not seen, and one fits.
    rx_icrc_id_solved,
    /// Packets received with the congestion mark CE.
    np_ecn_marked_roce_packets,
    /// CNPs sent.
    np_cnp_sent,
    /// CNPs received that a queue pair heeded.
    rp_cnp_handled,
    /// CNPs received for a queue pair whose rate they do not change.
    rp_cnp_ignored,
}
