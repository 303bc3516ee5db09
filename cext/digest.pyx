# cython: binding=False
# Plain method descriptors: the interpreter calls them faster than function objects.
"""Domain-separated preimages and their SHA-256.

Each preimage is written once into one exactly sized ``bytes`` object and hashed by one call of ``hashlib.sha256``.
OpenSSL is not called from C on purpose: a build then needs a C compiler and nothing else, and hashlib keeps its
own choice of the fastest implementation. Integers are big-endian, every tag ends in one NUL (OPEN P8-a).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from hashlib import sha256 as _sha256

cdef enum:
    PRECONDITION = 26   # u16 kind || id16 || u64 revision
    OBJECT_REF = 18     # its sort key
    CERTIFICATE_BODY = 145

cdef bytes OPERATION_TAG = b"phux-coordinator-operation/v1\0"
cdef bytes EFFECT_TAG = b"phux-coordinator-effect/v1\0"
cdef bytes SNAPSHOT_TAG = b"phux-coordinator-snapshot/v1\0"
cdef bytes REPLAY_TAG = b"phux-coordinator-replay/v1\0"
cdef bytes ACTIVATION_TAG = b"phux-coordinator-activation/v1\0"
cdef bytes SERVER_PROOF_TAG = b"phux-workload/v1\0server-proof\0"
cdef bytes CLIENT_PROOF_TAG = b"phux-workload/v1\0client-proof\0"
cdef bytes UDS_PEER_TAG = b"phux-workload/v1\0uds-peer\0"
cdef bytes TLS_CONTEXT_TAG = b"phux-workload/v1\0tls-context\0"


# Writing position of one preimage. Sizes are computed before the buffer is made, so the writes need no checks.

cdef inline unsigned char* put_u8(unsigned char* at, uint8_t value) noexcept nogil:
    at[0] = value
    return at + 1


cdef inline unsigned char* put_u16(unsigned char* at, uint16_t value) noexcept nogil:
    at[0] = <unsigned char> (value >> 8)
    at[1] = <unsigned char> value
    return at + 2


cdef inline unsigned char* put_u32(unsigned char* at, uint32_t value) noexcept nogil:
    return put_u16(put_u16(at, <uint16_t> (value >> 16)), <uint16_t> value)


cdef inline unsigned char* put_u64(unsigned char* at, uint64_t value) noexcept nogil:
    return put_u32(put_u32(at, <uint32_t> (value >> 32)), <uint32_t> value)


cdef inline unsigned char* put(unsigned char* at, bytes data) noexcept:
    memcpy(at, PyBytes_AS_STRING(data), <size_t> PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef inline unsigned char* put_v16(unsigned char* at, bytes data) noexcept:
    return put(put_u16(at, <uint16_t> PyBytes_GET_SIZE(data)), data)


cdef inline unsigned char* put_v32(unsigned char* at, bytes data) noexcept:
    return put(put_u32(at, <uint32_t> PyBytes_GET_SIZE(data)), data)


cdef inline int fixed(bytes data, Py_ssize_t width, str name) except -1:
    if data is None or PyBytes_GET_SIZE(data) != width:
        raise ValueError(f"{name} must be {width} bytes")
    return 0


cdef inline int variable(bytes data, uint64_t most, str name) except -1:
    if data is None or <uint64_t> PyBytes_GET_SIZE(data) > most:
        raise ValueError(f"{name} must be bytes, at most {most} of them")
    return 0


cdef inline bytes reserve(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline unsigned char* start(bytes image) noexcept:
    return <unsigned char*> PyBytes_AS_STRING(image)


cpdef bytes sha256(data):
    return _sha256(data).digest()


cdef int check_preconditions(bytes images, uint16_t count) except -1:
    cdef const char* at
    cdef Py_ssize_t index
    fixed(images, PRECONDITION * <Py_ssize_t> count, "preconditions")
    at = PyBytes_AS_STRING(images)
    for index in range(1, count):
        if memcmp(at, at + PRECONDITION, OBJECT_REF) >= 0:
            raise ValueError("preconditions must ascend by object and name each object once")
        at += PRECONDITION
    return 0


cpdef bytes operation_preimage(
    uint16_t command_kind, bytes payload, bytes preconditions, uint16_t count, bytes extensions
):
    cdef bytes image
    cdef unsigned char* at
    variable(payload, 0xFFFFFFFF, "payload")
    check_preconditions(preconditions, count)
    variable(extensions, 0xFFFFFFFF, "extensions")
    image = reserve(
        PyBytes_GET_SIZE(OPERATION_TAG) + 16
        + PyBytes_GET_SIZE(payload) + PyBytes_GET_SIZE(preconditions) + PyBytes_GET_SIZE(extensions)
    )
    at = put(start(image), OPERATION_TAG)
    at = put_u16(at, 0)
    at = put_u16(at, 1)
    at = put_u16(at, command_kind)
    at = put_v32(at, payload)
    at = put_u16(at, count)
    at = put(at, preconditions)
    put_v32(at, extensions)
    return image


cpdef bytes operation_digest(
    uint16_t command_kind, bytes payload, bytes preconditions, uint16_t count, bytes extensions
):
    return sha256(operation_preimage(command_kind, payload, preconditions, count, extensions))


cpdef bytes effect_preimage(uint8_t kind, bytes target, bytes payload):
    cdef bytes image
    cdef unsigned char* at
    variable(target, 0xFFFFFFFF, "target")
    variable(payload, 0xFFFFFFFF, "payload")
    image = reserve(PyBytes_GET_SIZE(EFFECT_TAG) + 9 + PyBytes_GET_SIZE(target) + PyBytes_GET_SIZE(payload))
    at = put(start(image), EFFECT_TAG)
    at = put_u8(at, kind)
    at = put_v32(at, target)
    put_v32(at, payload)
    return image


cpdef bytes effect_digest(uint8_t kind, bytes target, bytes payload):
    return sha256(effect_preimage(kind, target, payload))


cpdef bytes snapshot_header(
    bytes coordinator_id, uint64_t epoch, uint64_t activation, uint64_t base_event_cut, uint64_t record_count
):
    cdef bytes image
    cdef unsigned char* at
    fixed(coordinator_id, 16, "coordinator_id")
    image = reserve(PyBytes_GET_SIZE(SNAPSHOT_TAG) + 48)
    at = put(start(image), SNAPSHOT_TAG)
    at = put(at, coordinator_id)
    at = put_u64(at, epoch)
    at = put_u64(at, activation)
    at = put_u64(at, base_event_cut)
    put_u64(at, record_count)
    return image


cpdef bytes replay_header(
    bytes coordinator_id, uint64_t epoch, uint64_t activation, bytes subscription_id,
    uint64_t after, uint64_t replay_cut, uint64_t event_count
):
    cdef bytes image
    cdef unsigned char* at
    fixed(coordinator_id, 16, "coordinator_id")
    fixed(subscription_id, 16, "subscription_id")
    image = reserve(PyBytes_GET_SIZE(REPLAY_TAG) + 72)
    at = put(start(image), REPLAY_TAG)
    at = put(at, coordinator_id)
    at = put_u64(at, epoch)
    at = put_u64(at, activation)
    at = put(at, subscription_id)
    at = put_u64(at, after)
    at = put_u64(at, replay_cut)
    put_u64(at, event_count)
    return image


# The folds lend out the bound methods of their hash object: hashlib keeps constant memory by itself, and a call layer
# of our own costs more than hashing a small record does.

@cython.final
cdef class SnapshotDigest:
    """canonical_sha256 of a snapshot, folded page by page (P9-14, P9-15)."""

    def __cinit__(
        self, bytes coordinator_id, uint64_t epoch, uint64_t activation, uint64_t base_event_cut, uint64_t record_count
    ):
        fold = _sha256(snapshot_header(coordinator_id, epoch, activation, base_event_cut, record_count))
        self.update = fold.update
        self.digest = fold.digest


@cython.final
cdef class ReplayDigest:
    """Digest of a replay, folded page by page (P10-30, P10-31)."""

    def __cinit__(
        self, bytes coordinator_id, uint64_t epoch, uint64_t activation, bytes subscription_id,
        uint64_t after, uint64_t replay_cut, uint64_t event_count
    ):
        fold = _sha256(
            replay_header(coordinator_id, epoch, activation, subscription_id, after, replay_cut, event_count)
        )
        self.update = fold.update
        self.digest = fold.digest


cpdef bytes certificate_preimage(bytes body):
    cdef bytes image
    fixed(body, CERTIFICATE_BODY, "certificate body")
    image = reserve(PyBytes_GET_SIZE(ACTIVATION_TAG) + CERTIFICATE_BODY)
    put(put(start(image), ACTIVATION_TAG), body)
    return image


cdef Py_ssize_t check_binding_fields(
    bytes service, bytes client_nonce, bytes server_nonce, bytes incarnation, bytes binding, bytes authority_key
) except -1:
    """Widths of what both transcripts begin with; returns its size after the tag."""
    variable(service, 0xFFFF, "service")
    fixed(client_nonce, 32, "client_nonce")
    fixed(server_nonce, 32, "server_nonce")
    fixed(incarnation, 16, "incarnation")
    fixed(binding, 32, "binding")
    fixed(authority_key, 32, "authority_key")
    return 2 + PyBytes_GET_SIZE(service) + 4 + 32 + 32 + 16 + 1 + 32 + 32


cdef unsigned char* put_binding_fields(
    unsigned char* at, bytes service, uint16_t major, uint16_t minor, bytes client_nonce, bytes server_nonce,
    bytes incarnation, uint8_t binding_kind, bytes binding, bytes authority_key
) noexcept:
    at = put_v16(at, service)
    at = put_u16(at, major)
    at = put_u16(at, minor)
    at = put(at, client_nonce)
    at = put(at, server_nonce)
    at = put(at, incarnation)
    at = put_u8(at, binding_kind)
    at = put(at, binding)
    return put(at, authority_key)


def server_transcript(
    bytes service, uint16_t major, uint16_t minor, bytes client_nonce, bytes server_nonce, bytes incarnation,
    uint8_t binding_kind, bytes binding, bytes authority_key
) -> bytes:
    cdef bytes image
    cdef unsigned char* at
    cdef Py_ssize_t size = check_binding_fields(
        service, client_nonce, server_nonce, incarnation, binding, authority_key
    )
    image = reserve(PyBytes_GET_SIZE(SERVER_PROOF_TAG) + size)
    at = put(start(image), SERVER_PROOF_TAG)
    put_binding_fields(
        at, service, major, minor, client_nonce, server_nonce, incarnation, binding_kind, binding, authority_key
    )
    return image


def client_transcript(
    bytes service, uint16_t major, uint16_t minor, bytes client_nonce, bytes server_nonce, bytes incarnation,
    uint8_t binding_kind, bytes binding, bytes authority_key, bytes authority_proof, bytes key_id,
    uint64_t requested_expiry, bytes scope
) -> bytes:
    cdef bytes image
    cdef unsigned char* at
    cdef Py_ssize_t size = check_binding_fields(
        service, client_nonce, server_nonce, incarnation, binding, authority_key
    )
    fixed(authority_proof, 64, "authority_proof")
    fixed(key_id, 32, "key_id")
    variable(scope, 0xFFFFFFFF, "scope")
    size += 64 + 32 + 8 + 4 + PyBytes_GET_SIZE(scope)
    image = reserve(PyBytes_GET_SIZE(CLIENT_PROOF_TAG) + size)
    at = put(start(image), CLIENT_PROOF_TAG)
    at = put_binding_fields(
        at, service, major, minor, client_nonce, server_nonce, incarnation, binding_kind, binding, authority_key
    )
    at = put(at, authority_proof)
    at = put(at, key_id)
    at = put_u64(at, requested_expiry)
    put_v32(at, scope)
    return image


def uds_peer_preimage(bytes server_nonce, uint64_t uid, uint64_t gid, uint64_t pid) -> bytes:
    cdef bytes image
    cdef unsigned char* at
    fixed(server_nonce, 32, "server_nonce")
    image = reserve(PyBytes_GET_SIZE(UDS_PEER_TAG) + 56)
    at = put(put(start(image), UDS_PEER_TAG), server_nonce)
    at = put_u64(at, uid)
    at = put_u64(at, gid)
    put_u64(at, pid)
    return image


def uds_peer_binding(bytes server_nonce, uint64_t uid, uint64_t gid, uint64_t pid) -> bytes:
    return sha256(uds_peer_preimage(server_nonce, uid, gid, pid))


def tls_context_preimage(bytes service, uint16_t major, uint16_t minor) -> bytes:
    cdef bytes image
    variable(service, 0xFFFF, "service")
    image = reserve(PyBytes_GET_SIZE(TLS_CONTEXT_TAG) + 6 + PyBytes_GET_SIZE(service))
    put_u16(put_u16(put_v16(put(start(image), TLS_CONTEXT_TAG), service), major), minor)
    return image


def tls_context(bytes service, uint16_t major, uint16_t minor) -> bytes:
    return sha256(tls_context_preimage(service, major, minor))
