from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef class SnapshotDigest:
    cdef readonly object update
    cdef readonly object digest


cdef class ReplayDigest:
    cdef readonly object update
    cdef readonly object digest


cpdef bytes sha256(data)
cpdef bytes operation_preimage(
    uint16_t command_kind, bytes payload, bytes preconditions, uint16_t count, bytes extensions
)
cpdef bytes operation_digest(
    uint16_t command_kind, bytes payload, bytes preconditions, uint16_t count, bytes extensions
)
cpdef bytes effect_preimage(uint8_t kind, bytes target, bytes payload)
cpdef bytes effect_digest(uint8_t kind, bytes target, bytes payload)
cpdef bytes snapshot_header(
    bytes coordinator_id, uint64_t epoch, uint64_t activation, uint64_t base_event_cut, uint64_t record_count
)
cpdef bytes replay_header(
    bytes coordinator_id, uint64_t epoch, uint64_t activation, bytes subscription_id,
    uint64_t after, uint64_t replay_cut, uint64_t event_count
)
cpdef bytes certificate_preimage(bytes body)
