package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NcclException;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclConfig_v22800;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * The members of a communicator: opening, splitting, shrinking, revoking.
 *
 * <p>Threading: the device's thread.
 */
final class Membership {
    /** {@code NCCL_CONFIG_INITIALIZER}, which jextract cannot translate. */
    private static final int CONFIG_MAGIC = 0xcafebeef;

    /** Far more than the GPUs of a cluster; the state that ranks share still fits in memory. */
    private static final int MOST_RANKS = 1 << 20;

    private static final int UNDEFINED = Integer.MIN_VALUE;

    private static final String BLOCKING = "NCCL_COMM_BLOCKING";
    /** Values that NCCL reads as a number other than 0. */
    private static final Pattern NOT_ZERO = Pattern.compile("\\s*[+-]?(0[xX]0*[1-9a-fA-F]|0*[1-9]).*");

    private Membership() {}

    /**
     * Refuses a variable that overrides what {@link #write} sets.
     *
     * @throws IllegalStateException when the variable chooses the other mode
     */
    static void ensureAgreed(@Nullable String value, CallMode mode) {
        if (value == null || value.isEmpty()) {
            return;
        }
        boolean blocks = NOT_ZERO.matcher(value).matches();
        if (!blocks && mode == CallMode.BLOCKING) {
            throw new IllegalStateException(
                    BLOCKING + ": expected 1, or the variable unset, got " + ForeignText.quoted(value)
                            + ", with which NCCL's calls return before they are done; start the program without it, or choose"
                            + " CallMode.NON_BLOCKING");
        }
        if (blocks && mode == CallMode.NON_BLOCKING) {
            throw new IllegalStateException(BLOCKING + ": expected 0, or the variable unset, for CallMode.NON_BLOCKING,"
                    + " got " + ForeignText.quoted(value)
                    + "; start the program without it, or choose CallMode.BLOCKING");
        }
    }

    static Endpoint open(Device device, UniqueId id, int ranks, int rank, CommunicatorConfig config) {
        Checks.given("id", id, "config", config);
        ensureAgreed(System.getenv(BLOCKING), config.callMode());
        Inside.state(Checks.given("device", device)).ensureCurrent();
        Inside.state(device).ensureNotCapturing(Opening.OPEN);
        Group.refuse(Opening.OPEN);
        Checks.atLeastOne("ranks", ranks);
        if (ranks > MOST_RANKS) {
            throw new IllegalArgumentException("ranks: expected at most " + MOST_RANKS + ", got " + ranks);
        }
        if (rank < 0 || rank >= ranks) {
            throw new IllegalArgumentException("rank: expected 0 to " + (ranks - 1) + ", got " + rank);
        }
        var _ = FlightRecorder.capacity(); // refused before NCCL has opened anything
        ThreadRanks meeting = id.meeting(ranks);
        if (meeting != null) {
            Called waiting = Called.in(Called.caller(config, rank, ranks), Opening.OPEN);
            meeting.join(rank, waiting, config.timeout().toMillis());
        } else if (config.checks() == CollectiveChecks.FULL && !id.areTold()) {
            throw new IllegalArgumentException(
                    "checks: expected ARGUMENTS where ranks are in several processes that Ranks"
                            + " has not joined, got FULL");
        }
        Opening opening = new Opening(device.index(), id, ranks, rank, config);
        if (meeting == null) {
            ProcessRanks peers = id.peers();
            PeerPlace place = peers == null ? null : PeerPlace.ofAll(peers, ranks);
            return joined(new Endpoint(device, config, null, place, opening.within(config.timeout())));
        }
        try {
            return new Endpoint(device, config, meeting, null, opening.call(() -> meeting.failure() != null));
        } catch (NcclException refused) {
            // A rank that NCCL refuses will not join: the others need not wait for it.
            meeting.fail(RankFailure.thrown(rank, refused));
            throw refused;
        } catch (RankFailedException late) {
            RankFailure told = meeting.failure();
            throw told == null ? late : told.exception(Called.in(Called.caller(config, rank, ranks), Opening.OPEN));
        }
    }

    static MemorySegment write(CommunicatorConfig config, Arena arena) {
        MemorySegment struct = ncclConfig_v22800.allocate(arena);
        ncclConfig_v22800.size(struct, ncclConfig_v22800.sizeof());
        ncclConfig_v22800.magic(struct, CONFIG_MAGIC);
        ncclConfig_v22800.version(struct, Nccl.NCCL_VERSION_CODE());
        ncclConfig_v22800.blocking(struct, config.callMode().code());
        ncclConfig_v22800.cgaClusterSize(struct, UNDEFINED);
        ncclConfig_v22800.minCTAs(struct, config.minCtas() == 0 ? UNDEFINED : config.minCtas());
        ncclConfig_v22800.maxCTAs(struct, config.maxCtas() == 0 ? UNDEFINED : config.maxCtas());
        ncclConfig_v22800.netName(struct, MemorySegment.NULL);
        ncclConfig_v22800.splitShare(struct, UNDEFINED);
        ncclConfig_v22800.trafficClass(struct, UNDEFINED);
        ncclConfig_v22800.commName(struct, arena.allocateFrom(config.name()));
        ncclConfig_v22800.collnetEnable(struct, UNDEFINED);
        ncclConfig_v22800.CTAPolicy(struct, config.ctaPolicy().code());
        ncclConfig_v22800.shrinkShare(struct, UNDEFINED);
        ncclConfig_v22800.nvlsCTAs(struct, UNDEFINED);
        ncclConfig_v22800.nChannelsPerNetPeer(struct, UNDEFINED);
        ncclConfig_v22800.nvlinkCentricSched(struct, UNDEFINED);
        return struct;
    }

    static Endpoint split(Endpoint parent, int color, int key, CommunicatorConfig config) {
        ensureAgreed(System.getenv(BLOCKING), Checks.given("config", config).callMode());
        if (color < 0) {
            throw new IllegalArgumentException(
                    "color: expected at least 0, got " + color + "; splitWithoutPart leaves this rank out");
        }
        MemorySegment made = splitHandle(parent, color, key, config);
        ThreadRanks above = parent.meeting;
        ThreadRanks meeting = above == null ? null : above.descendants.split(parent.calls.counts.collectives(), color);
        Device device = parent.device;
        PeerPlace place = parent.elsewhere;
        if (place != null) {
            place = place.split(parent.calls.counts.collectives(), color, isWhole(parent, made));
        }
        return joined(new Endpoint(device, config, meeting, place, made));
    }

    /** If calls are compared between processes, waits until each rank of the new communicator has announced its process. */
    private static Endpoint joined(Endpoint made) {
        if (made.config.checks() == CollectiveChecks.FULL && made.exchange instanceof PeerComparisons others) {
            try {
                others.join(made);
            } catch (RuntimeException | Error failed) {
                made.close();
                throw failed;
            }
        }
        return made;
    }

    /** Returns whether a split has all ranks, as far as this one sees in their order. */
    private static boolean isWhole(Endpoint parent, MemorySegment made) {
        MemorySegment out = parent.state.out();
        Status.nccl(Nccl.ncclCommCount(made, out), "ncclCommCount");
        boolean all = out.get(ValueLayout.JAVA_INT, 0) == parent.ranks;
        Status.nccl(Nccl.ncclCommUserRank(made, out), "ncclCommUserRank");
        return all && out.get(ValueLayout.JAVA_INT, 0) == parent.rank;
    }

    static void splitWithoutPart(Endpoint parent) {
        var _ = splitHandle(parent, Nccl.NCCL_SPLIT_NOCOLOR(), 0, null);
        ThreadRanks above = parent.meeting;
        if (above != null) {
            above.descendants.splitWithoutPart(parent.calls.counts.collectives());
        }
    }

    /** Takes part in a split; the handle is null without a color. */
    private static MemorySegment splitHandle(Endpoint parent, int color, int key, @Nullable CommunicatorConfig config) {
        MemorySegment handle = ready(parent, "split");
        parent.ensureUsable();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = place(arena, parent);
            MemorySegment struct = config == null ? MemorySegment.NULL : write(config, arena);
            ThreadRanks above = parent.meeting;
            if (above != null) {
                above.descendants.say(parent.calls.counts.collectives() + 1, parent.rank, color, key);
            }
            parent.calls.begin(Operation.SPLIT, 0, DType.BYTE);
            int status = parent.calls.await(Nccl.ncclCommSplit(handle, color, key, out, struct));
            // What NCCL has made before it fails must stay: until the parent is aborted, that points to its flags
            // (childAbortFlag of NCCL's init.cc).
            parent.calls.end(status);
            return out.get(ValueLayout.ADDRESS, 0);
        }
    }

    /** For the new handle; never freed where NCCL may write it on a thread of its own, 8 bytes for each communicator. */
    private static MemorySegment place(Arena arena, Endpoint parent) {
        return (parent.calls.isPolled() ? Arena.global() : arena).allocate(ValueLayout.ADDRESS);
    }

    static Endpoint shrink(Endpoint parent, CommunicatorConfig config, int... excluded) {
        ensureAgreed(System.getenv(BLOCKING), Checks.given("config", config).callMode());
        MemorySegment handle = ready(parent, "shrink");
        int[] sorted = Checks.given("excluded", excluded).clone();
        Arrays.sort(sorted);
        checkExcluded(parent, sorted);
        parent.failures.awaitRevoked();
        RankFailure before = parent.failure();
        PeerPlace elsewhere = parent.elsewhere;
        PeerAgreement.Outcome agreed =
                elsewhere == null ? null : elsewhere.peers().takeDecided(elsewhere.without(sorted));
        if (elsewhere != null && agreed != null) {
            return openedByThoseLeft(parent, config, elsewhere, agreed);
        }
        int number = parent.nextShrink();
        ThreadRanks meeting = meetingOfRest(parent, config, number, sorted);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = place(arena, parent);
            int flags = parent.failure() == null ? Nccl.NCCL_SHRINK_DEFAULT() : Nccl.NCCL_SHRINK_ABORT();
            MemorySegment list = arena.allocateFrom(ValueLayout.JAVA_INT, sorted);
            int status = Nccl.ncclCommShrink(handle, list, sorted.length, out, write(config, arena), flags);
            if (parent.calls.isPolled()) {
                status = awaitShrunk(parent, config, status, before);
            }
            Status.nccl(status, "ncclCommShrink");
            MemorySegment made = out.get(ValueLayout.ADDRESS, 0);
            PeerPlace place = elsewhere == null ? null : elsewhere.shrunk(number, sorted);
            return joined(new Endpoint(parent.device, config, meeting, place, made));
        }
    }

    /**
     * Returns the status of a shrink when it is done: the parent is in progress until then.
     *
     * @param before the failure of the parent, if it had failed before
     * @throws RankFailedException when that takes longer than the timeout, or the parent has failed meanwhile
     */
    private static int awaitShrunk(
            Endpoint parent, CommunicatorConfig config, int returned, @Nullable RankFailure before) {
        if (returned != Nccl.ncclSuccess() && returned != Nccl.ncclInProgress()) {
            return returned;
        }
        int status = Polling.await(parent, config.timeout(), before);
        Called called = Called.in(parent.toString(), "shrink");
        if (status == Nccl.ncclInProgress()) {
            // This does nothing if the parent has failed. Otherwise its revocation ends the shrink.
            parent.failures.fail(
                    new RankFailure(List.of(), "not all remaining ranks called shrink within the timeout", null));
        }
        RankFailure after = parent.failure();
        if (after != null && after != before) {
            throw after.exception(called);
        }
        if (status == Nccl.ncclInProgress()) {
            throw new RankFailedException(
                    called.waited(config.timeout()) + ": not all remaining ranks called",
                    List.of(),
                    "shrink",
                    config.timeout(),
                    null);
        }
        return status;
    }

    /**
     * Opens the communicator of the remaining processes with a new identifier, instead of NCCL's shrink: that waits forever for a process
     * that fails meanwhile, and messages of the others would be mistaken for those of the next shrink.
     */
    private static Endpoint openedByThoseLeft(
            Endpoint parent, CommunicatorConfig config, PeerPlace elsewhere, PeerAgreement.Outcome agreed) {
        List<Integer> left = List.copyOf(agreed.left().keySet());
        Device device = parent.device;
        UniqueId id = UniqueId.of(agreed.id(), elsewhere.peers(), left);
        int rank = left.indexOf(elsewhere.base().get(parent.rank));
        MemorySegment handle = new Opening(device.index(), id, left.size(), rank, config).within(config.timeout());
        // Equal on all remaining ranks, whichever communicator each of them had before.
        String name = "-" + HexFormat.of().formatHex(agreed.id());
        return joined(new Endpoint(device, config, null, new PeerPlace(elsewhere.peers(), name, left, true), handle));
    }

    /** Waits for the remaining ranks; NCCL would wait forever. */
    private static @Nullable ThreadRanks meetingOfRest(
            Endpoint parent, CommunicatorConfig config, int number, int... excluded) {
        ThreadRanks above = parent.meeting;
        if (above == null) {
            return null;
        }
        int[] staying = IntStream.range(0, parent.ranks)
                .filter(rank -> Arrays.binarySearch(excluded, rank) < 0)
                .toArray();
        ThreadRanks meeting = above.descendants.shrink(number + " without " + Arrays.toString(excluded), staying);
        int place = Arrays.binarySearch(staying, parent.rank);
        meeting.join(
                place, Called.in(parent.toString(), "shrink"), config.timeout().toMillis());
        return meeting;
    }

    private static void checkExcluded(Endpoint parent, int[] sorted) {
        if (sorted.length == 0 || sorted.length >= parent.ranks) {
            throw new IllegalArgumentException(
                    "excluded: expected 1 to " + (parent.ranks - 1) + " ranks, got " + sorted.length);
        }
        for (int i = 0; i < sorted.length; i++) {
            CollectiveArguments.rank(parent, "excluded", sorted[i]);
            if (sorted[i] == parent.rank || (i > 0 && sorted[i] == sorted[i - 1])) {
                throw new IllegalArgumentException("excluded: expected other ranks, each once, got "
                        + Arrays.toString(sorted) + " on rank " + parent.rank);
            }
        }
    }

    static void revoke(Endpoint endpoint) {
        ready(endpoint, "revoke");
        int rank = endpoint.rank;
        endpoint.failures.fail(new RankFailure(List.of(rank), "rank " + rank + " revoked the communicator", null));
    }

    private static MemorySegment ready(Endpoint endpoint, String call) {
        MemorySegment handle = endpoint.handle();
        endpoint.state.ensureNotCapturing(call);
        Group.refuse(call);
        return handle;
    }
}
