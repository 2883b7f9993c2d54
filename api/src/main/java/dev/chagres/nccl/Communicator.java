package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

// Over 400 lines: nearly half are Javadoc, of each of NCCL's collectives. Endpoint, RankCalls and Membership do the
// rest.

/**
 * One rank's part in a group of ranks that call the same collectives in the same order.
 *
 * <p>A collective checks its arguments and enqueues: returning means enqueued. {@link #synchronize} waits for the stream no longer than the
 * configured timeout. Where a method says "in place", both tensors may begin at that address; other overlaps are refused. Methods that
 * make, end or register something ({@code split} to {@link #register}) throw {@link IllegalStateException} after {@link #close()}, while a
 * stream of the device captures, and inside {@link #group}.
 *
 * {@snippet file="dev/chagres/sharding/CollectivesExampleTest.java" region="collectives"}
 *
 * <p>Threading: the device's thread; each rank has its own thread and device. If ranks are threads of one program, a collective waits on
 * the host until all ranks have called it, a transfer until its peer has.
 *
 * <p>Source: {@code ncclComm_t} and the collectives of {@code nccl.h}.
 */
public final class Communicator implements AutoCloseable {
    private final Endpoint endpoint;
    private final RankCalls calls;

    Communicator(Endpoint endpoint) {
        this.endpoint = endpoint;
        calls = endpoint.calls;
    }

    /**
     * Joins a communicator and waits until all its ranks have joined.
     *
     * @param ranks N
     * @param rank r, from 0 to N - 1
     * @throws IllegalArgumentException when a number does not fit, or the rank has opened it already
     * @throws RankFailedException when a rank does not join within the timeout, or has failed
     * @throws dev.chagres.bindings.NcclException when NCCL refuses, as it does two ranks on one device
     */
    public static Communicator open(Device device, UniqueId id, int ranks, int rank, CommunicatorConfig config) {
        return new Communicator(Membership.open(device, id, ranks, rank, config));
    }

    /** Returns N. */
    public int ranks() {
        return endpoint.ranks;
    }

    /** Returns r. */
    public int rank() {
        return endpoint.rank;
    }

    /**
     * Returns whether its ranks are threads of this program that share the {@link UniqueId}. A collective is then passed to NCCL only when
     * all ranks have called it, so that none waits on the device for a rank that has failed.
     */
    public boolean areThreads() {
        return endpoint.meeting != null;
    }

    /** Returns the device whose tensors take part. */
    public Device device() {
        return endpoint.device;
    }

    /** Returns the configuration. */
    public CommunicatorConfig config() {
        return endpoint.config;
    }

    Endpoint endpoint() {
        return endpoint;
    }

    /**
     * Enqueues {@code receive = reduction over ranks of send}, the same on each rank.
     *
     * @param send C elements
     * @param receive C elements of the same type; in place: send
     * @throws IllegalArgumentException when types, counts or devices do not fit, or memory is shared otherwise
     * @throws IllegalStateException after {@link #close()}, or when ranks call differently under {@link CollectiveChecks#FULL}
     * @throws RankFailedException when another rank failed or did not come within the timeout
     */
    public void allReduce(Tensor send, Tensor receive, Reduction reduction, Stream stream) {
        CollectiveArguments.source(endpoint, stream, "send", send);
        CollectiveArguments.target(endpoint, stream, "receive", receive);
        CollectiveArguments.multiple("receive", receive, "send", send, 1);
        Checks.apartOrSame("receive", receive, "send", send);
        calls.call(Operation.ALL_REDUCE, send, send.address(), receive.address(), send.count(), reduction, 0, stream);
    }

    /**
     * Enqueues {@code receive[i C .. (i + 1) C) = send of rank i}, on each rank.
     *
     * @param send C elements of any type, FP8 as bytes
     * @param receive N C elements of the same type; in place: send is its part r
     * @throws IllegalArgumentException as {@link #allReduce}
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void allGather(Tensor send, Tensor receive, Stream stream) {
        CollectiveArguments.source(endpoint, stream, "send", send);
        CollectiveArguments.target(endpoint, stream, "receive", receive);
        CollectiveArguments.multiple("receive", receive, "send", send, ranks());
        CollectiveArguments.apartOrAtPlace("send", send, "receive", receive, rank());
        calls.call(Operation.ALL_GATHER, send, send.address(), receive.address(), send.count(), null, 0, stream);
    }

    /**
     * Enqueues {@code receive = reduction over ranks of send[r C .. (r + 1) C)}.
     *
     * @param send N C elements
     * @param receive C elements of the same type; in place: part r of send
     * @throws IllegalArgumentException as {@link #allReduce}
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void reduceScatter(Tensor send, Tensor receive, Reduction reduction, Stream stream) {
        CollectiveArguments.source(endpoint, stream, "send", send);
        CollectiveArguments.target(endpoint, stream, "receive", receive);
        CollectiveArguments.multiple("send", send, "receive", receive, ranks());
        CollectiveArguments.apartOrAtPlace("receive", receive, "send", send, rank());
        calls.call(
                Operation.REDUCE_SCATTER,
                receive,
                send.address(),
                receive.address(),
                receive.count(),
                reduction,
                0,
                stream);
    }

    /**
     * Enqueues {@code receive = send of the root}, on each rank.
     *
     * @param send C elements of any type on the root; null elsewhere
     * @param receive C elements of the same type; in place: send
     * @param root the rank that sends
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void broadcast(@Nullable Tensor send, Tensor receive, int root, Stream stream) {
        CollectiveArguments.target(endpoint, stream, "receive", receive);
        CollectiveArguments.rank(endpoint, "root", root);
        long source = receive.address();
        if (root == rank()) {
            Tensor given = CollectiveArguments.onRoot("send", send);
            CollectiveArguments.source(endpoint, stream, "send", given);
            CollectiveArguments.multiple("receive", receive, "send", given, 1);
            Checks.apartOrSame("receive", receive, "send", given);
            source = given.address();
        }
        calls.call(Operation.BROADCAST, receive, source, receive.address(), receive.count(), null, root, stream);
    }

    /**
     * Enqueues {@code receive = reduction over ranks of send}, on the root alone.
     *
     * @param send C elements
     * @param receive C elements of the same type on the root, in place: send; null elsewhere
     * @param root the rank that receives
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void reduce(Tensor send, @Nullable Tensor receive, Reduction reduction, int root, Stream stream) {
        CollectiveArguments.source(endpoint, stream, "send", send);
        CollectiveArguments.rank(endpoint, "root", root);
        long target = 0;
        if (root == rank()) {
            Tensor given = CollectiveArguments.onRoot("receive", receive);
            CollectiveArguments.target(endpoint, stream, "receive", given);
            CollectiveArguments.multiple("receive", given, "send", send, 1);
            Checks.apartOrSame("receive", given, "send", send);
            target = given.address();
        }
        calls.call(Operation.REDUCE, send, send.address(), target, send.count(), reduction, root, stream);
    }

    /**
     * Enqueues {@code receive[i C .. (i + 1) C) = send of rank i}, on the root alone.
     *
     * @param send C elements of any type
     * @param receive N C elements of the same type on the root, in place: send is its part r; null elsewhere
     * @param root the rank that receives
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void gather(Tensor send, @Nullable Tensor receive, int root, Stream stream) {
        CollectiveArguments.sent(endpoint, stream, "send", send);
        CollectiveArguments.rank(endpoint, "root", root);
        long target = 0;
        if (root == rank()) {
            Tensor given = CollectiveArguments.onRoot("receive", receive);
            CollectiveArguments.received(endpoint, stream, "receive", given);
            CollectiveArguments.multiple("receive", given, "send", send, ranks());
            CollectiveArguments.apartOrAtPlace("send", send, "receive", given, root);
            target = given.address();
        }
        calls.call(Operation.GATHER, send, send.address(), target, send.count(), null, root, stream);
    }

    /**
     * Enqueues {@code receive = send[r C .. (r + 1) C) of the root}, on each rank.
     *
     * @param send N C elements of any type on the root; null elsewhere
     * @param receive C elements of the same type; in place: part r of send
     * @param root the rank that sends
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void scatter(@Nullable Tensor send, Tensor receive, int root, Stream stream) {
        CollectiveArguments.received(endpoint, stream, "receive", receive);
        CollectiveArguments.rank(endpoint, "root", root);
        long source = 0;
        if (root == rank()) {
            Tensor given = CollectiveArguments.onRoot("send", send);
            CollectiveArguments.sent(endpoint, stream, "send", given);
            CollectiveArguments.multiple("send", given, "receive", receive, ranks());
            CollectiveArguments.apartOrAtPlace("receive", receive, "send", given, root);
            source = given.address();
        }
        calls.call(Operation.SCATTER, receive, source, receive.address(), receive.count(), null, root, stream);
    }

    /**
     * Enqueues {@code receive[i C .. (i + 1) C) = send[r C .. (r + 1) C) of rank i}, on each rank.
     *
     * @param send N C elements of any type
     * @param receive N C elements of the same type, in memory of its own
     * @throws IllegalArgumentException as {@link #allReduce}, or when N does not divide the number of elements
     * @throws IllegalStateException as {@link #allReduce}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void allToAll(Tensor send, Tensor receive, Stream stream) {
        CollectiveArguments.exchanged(endpoint, stream, send, receive);
        CollectiveArguments.multiple("receive", receive, "send", send, 1);
        if (send.count() % ranks() != 0) {
            throw new IllegalArgumentException("send: expected a number of elements that the " + ranks()
                    + " ranks divide, got " + Checks.describe(send));
        }
        Checks.apart("receive", receive, "send", send);
        long part = send.count() / ranks();
        calls.call(Operation.ALL_TO_ALL, send, send.address(), receive.address(), part, null, 0, stream);
    }

    /**
     * Enqueues a transfer of {@code tensor} to rank {@code peer}, which must receive as many elements of the same type. Put transfers in
     * both directions into one {@link #group}, and also both halves of a transfer to this rank itself.
     *
     * @param tensor any type
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank, or NCCL cannot transfer {@link CollectiveMemory}
     *     of this communicator
     * @throws IllegalStateException as {@link #allReduce}, or when the peer is this rank and no group is open
     * @throws RankFailedException as {@link #allReduce}
     */
    public void send(Tensor tensor, int peer, Stream stream) {
        CollectiveArguments.sent(endpoint, stream, "tensor", tensor);
        CollectiveArguments.peer(endpoint, "send", peer);
        calls.call(Operation.SEND, tensor, tensor.address(), 0, tensor.count(), null, peer, stream);
    }

    /**
     * Enqueues a transfer from rank {@code peer} into {@code tensor}; see {@link #send}.
     *
     * @param tensor any type
     * @throws IllegalArgumentException as {@link #allReduce}, or when there is no such rank
     * @throws IllegalStateException as {@link #send}
     * @throws RankFailedException as {@link #allReduce}
     */
    public void receive(Tensor tensor, int peer, Stream stream) {
        CollectiveArguments.received(endpoint, stream, "tensor", tensor);
        CollectiveArguments.peer(endpoint, "receive", peer);
        calls.call(Operation.RECEIVE, tensor, 0, tensor.address(), tensor.count(), null, peer, stream);
    }

    /**
     * Combines the collectives and transfers that {@code body} calls, on any communicators, into one NCCL group, in which none waits for
     * another. If the body throws, none is enqueued. They are enqueued when the body has ended: call layers, optimizers and everything else
     * that reads their results after the group.
     *
     * @throws IllegalStateException when ranks call differently under {@link CollectiveChecks#FULL}
     * @throws RankFailedException as {@link #allReduce}
     */
    public static void group(Runnable body) {
        Group.ofThread().run(Checks.given("body", body));
    }

    /**
     * Makes a sum of values that this rank multiplies by {@code factor} first. Other ranks may have other factors.
     *
     * @param dtype the type of the values
     * @param factor rounded to that type
     * @throws IllegalArgumentException when an integer type cannot hold the factor, or dtype is FP8
     */
    public PremultipliedSum premultipliedSum(DType dtype, double factor) {
        return PreMulSumFactor.sum(endpoint, dtype, factor);
    }

    /**
     * Makes a communicator of the ranks that pass the same color, ordered by key, then by rank; each rank calls it.
     *
     * @param color at least 0
     * @param key the order within the new communicator
     * @param config of the new communicator
     * @return the communicator of this color
     * @throws IllegalArgumentException when the color is negative
     * @throws RankFailedException as {@link #allReduce}
     */
    public Communicator split(int color, int key, CommunicatorConfig config) {
        return new Communicator(Membership.split(endpoint, color, key, config));
    }

    /**
     * Takes part in the other ranks' {@link #split} without getting a communicator.
     *
     * @throws RankFailedException as {@link #allReduce}
     */
    public void splitWithoutPart() {
        Membership.splitWithoutPart(endpoint);
    }

    /**
     * Makes a communicator of all ranks except {@code excluded}, in the same order; each remaining rank calls it, excluded ones do not. It
     * works after ranks have failed or after {@link #revoke()}; running collectives are aborted.
     *
     * @param config of the new communicator
     * @param excluded ranks, at least one
     * @throws IllegalArgumentException when there is no such rank, or it is the caller's own
     * @throws RankFailedException when a rank that should stay does not call it within the new communicator's timeout
     */
    public Communicator shrink(CommunicatorConfig config, int... excluded) {
        return new Communicator(Membership.shrink(endpoint, config, excluded));
    }

    /** Aborts running collectives with an error; afterwards only {@link #shrink} and {@link #close()} can be called. */
    public void revoke() {
        Membership.revoke(endpoint);
    }

    /**
     * Waits until {@code stream} is idle, no longer than the timeout.
     *
     * @throws RankFailedException after the timeout, or when another rank failed; running collectives are then aborted
     * @throws dev.chagres.bindings.NcclException when NCCL reports an error
     */
    public void synchronize(Stream stream) {
        AsyncErrorPoll.synchronize(endpoint, stream);
    }

    /**
     * Checks, without waiting, that NCCL has reported no error since the communicator was opened.
     *
     * @throws RankFailedException when another rank failed
     * @throws dev.chagres.bindings.NcclException when NCCL reports an error
     */
    public void check() {
        AsyncErrorPoll.check(endpoint);
    }

    /**
     * Registers a tensor's memory for the collectives of this communicator. Each rank calls it with the same size, and waits for the
     * others.
     *
     * @throws IllegalArgumentException when the tensor is on another device or has no elements
     * @throws IllegalStateException while a stream of the device captures, or inside {@link #group}
     * @throws RankFailedException when another rank failed or did not come
     */
    public Registration register(Tensor tensor) {
        return Registration.of(endpoint, tensor);
    }

    /**
     * Allocates memory for tensors that ranks gather, in one window if NCCL can make one. Each rank calls it with the same size, and waits
     * for the others.
     *
     * @param byteSize at least 1; each tensor takes its bytes rounded up to a multiple of 256
     * @param stream in whose order the memory is used
     * @throws IllegalArgumentException when the size is below 1, or the stream belongs to another device
     * @throws IllegalStateException while a stream of the device captures, or inside {@link #group}
     * @throws RankFailedException when another rank failed or did not come
     * @throws dev.chagres.bindings.NcclException when the device does not have that much memory
     */
    public CollectiveMemory allocate(long byteSize, Stream stream) {
        return CollectiveMemory.of(endpoint, byteSize, stream);
    }

    /**
     * Closes this rank's part; a second call does nothing. All ranks should have finished: a rank that still waits for this one fails.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link #group}
     */
    @Override
    public void close() {
        endpoint.close();
    }

    @Override
    public String toString() {
        return endpoint.toString();
    }
}
