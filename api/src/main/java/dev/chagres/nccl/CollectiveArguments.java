package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import org.jspecify.annotations.Nullable;

/**
 * Checks of a collective's arguments: each message names the argument, what was expected and what came.
 *
 * <p>Threading: the device's thread.
 */
final class CollectiveArguments {
    /** The compute capability from which on NCCL reduces FP8. */
    private static final int HOPPER = 90;

    private CollectiveArguments() {}

    /** Checks the communicator, the stream, and a tensor that is read. */
    static void source(Endpoint endpoint, Stream stream, String argument, Tensor tensor) {
        endpoint.ensureUsable();
        if (Checks.given("stream", stream).device() != endpoint.device) {
            throw new IllegalArgumentException("stream: expected a stream of " + endpoint.device + ", got one of "
                    + Checks.other(stream.device(), endpoint.device));
        }
        var _ = stream.handle(); // throws if it is closed, before the call is announced to peers
        Checks.on(stream, argument, tensor);
    }

    /** Checks a tensor that is written to. */
    static void target(Endpoint endpoint, Stream stream, String argument, Tensor tensor) {
        source(endpoint, stream, argument, tensor);
        Checks.writable(argument, tensor);
    }

    /** Checks a tensor that is read by a call which NCCL makes of transfers. */
    static void sent(Endpoint endpoint, Stream stream, String argument, Tensor tensor) {
        source(endpoint, stream, argument, tensor);
        endpoint.ownMemory.ensureTransferable(argument, tensor);
    }

    /** Checks a tensor that is written to by a call which NCCL makes of transfers. */
    static void received(Endpoint endpoint, Stream stream, String argument, Tensor tensor) {
        target(endpoint, stream, argument, tensor);
        endpoint.ownMemory.ensureTransferable(argument, tensor);
    }

    /** Checks the tensors of an all-to-all: NCCL makes it of transfers, unless copy engines can write the windows of both. */
    static void exchanged(Endpoint endpoint, Stream stream, Tensor send, Tensor receive) {
        source(endpoint, stream, "send", send);
        target(endpoint, stream, "receive", receive);
        RegisteredMemory own = endpoint.ownMemory;
        if (endpoint.config.ctaPolicy() != CtaPolicy.ZERO || !own.isInWindow(send) || !own.isInWindow(receive)) {
            own.ensureTransferable("send", send);
            own.ensureTransferable("receive", receive);
        }
    }

    /** Checks that {@code tensor} has {@code times} the elements of {@code part}, of the same type. */
    static void multiple(String argument, Tensor tensor, String partArgument, Tensor part, int times) {
        if (tensor.dtype() != part.dtype() || tensor.count() != Math.multiplyExact(part.count(), (long) times)) {
            String factor = times == 1 ? "as many" : times + " times the";
            throw new IllegalArgumentException(argument + ": expected " + factor + " elements of " + partArgument + ", "
                    + times * part.count() + " of " + part.dtype() + ", got " + Checks.describe(tensor));
        }
    }

    /** Checks that {@code part} lies at place {@code rank} of {@code whole}, which is NCCL's in-place form, or shares no byte with it. */
    static void apartOrAtPlace(String argument, Tensor part, String wholeArgument, Tensor whole, int rank) {
        long place = Inside.address(whole) + rank * part.byteSize();
        if (Inside.address(part) != place && Checks.overlaps(part, whole)) {
            throw new IllegalArgumentException(argument + ": expected memory of its own, or in place part " + rank
                    + " of " + wholeArgument + ", got other memory of " + wholeArgument);
        }
    }

    /** Checks a rank that other ranks send to or get from. */
    static void rank(Endpoint endpoint, String argument, int rank) {
        if (rank < 0 || rank >= endpoint.ranks) {
            throw new IllegalArgumentException(
                    argument + ": expected a rank from 0 to " + (endpoint.ranks - 1) + ", got " + rank);
        }
    }

    /** Checks a rank that a call sends to or receives from: to itself a rank sends what it receives in the same group alone. */
    static void peer(Endpoint endpoint, String call, int peer) {
        rank(endpoint, "peer", peer);
        if (peer == endpoint.rank && !Group.ofThread().isOpen()) {
            throw new IllegalStateException(
                    call + ": expected a call inside Communicator.group, beside the other half of the"
                            + " transfer, for rank " + peer + " is this one, got one outside");
        }
    }

    /** Checks that the root has the tensor that only it needs. */
    static Tensor onRoot(String argument, @Nullable Tensor tensor) {
        if (tensor == null) {
            throw new NullPointerException(argument + ": expected a tensor on the root, got null");
        }
        return tensor;
    }

    /** Returns NCCL's number of the reduction of elements of {@code dtype}. */
    static int operation(Endpoint endpoint, @Nullable Reduction reduction, DType dtype) {
        boolean hopper =
                endpoint.device.computeCapability() >= HOPPER || endpoint.device.provider() == Provider.REFERENCE;
        if (dtype.isFloat8() && !hopper) {
            throw new IllegalArgumentException("reduction: expected no FP8 on " + endpoint.device.name()
                    + ", for NCCL reduces " + dtype + " from compute capability 9.0 on; reduce a cast to BFLOAT16");
        }
        return switch (Checks.given("reduction", reduction)) {
            case StandardReduction standard -> {
                // NCCL refuses averages of one rank in FP8.
                boolean isSum = standard == StandardReduction.AVERAGE && endpoint.ranks == 1;
                yield (isSum ? StandardReduction.SUM : standard).ordinal();
            }
            case PremultipliedSum sum -> sum.codeFor(endpoint, dtype);
        };
    }

    /** Returns NCCL's number of a type whose values are combined. */
    static int type(DType dtype) {
        return switch (dtype) {
            case BYTE -> Nccl.ncclUint8();
            case INT16 ->
                throw new IllegalArgumentException("tensor: expected elements of a type that NCCL has, got " + dtype);
            case INT8 -> Nccl.ncclInt8();
            case INT32 -> Nccl.ncclInt32();
            case UINT32 -> Nccl.ncclUint32();
            case INT64 -> Nccl.ncclInt64();
            case UINT64 -> Nccl.ncclUint64();
            case FLOAT64 -> Nccl.ncclFloat64();
            case FLOAT32 -> Nccl.ncclFloat32();
            case FLOAT16 -> Nccl.ncclFloat16();
            case BFLOAT16 -> Nccl.ncclBfloat16();
            case FLOAT8_E4M3 -> Nccl.ncclFloat8e4m3();
            case FLOAT8_E5M2 -> Nccl.ncclFloat8e5m2();
        };
    }

    /** Returns NCCL's number of a type whose values are only moved: FP8 goes as bytes, whatever the GPU. */
    static int movedType(DType dtype) {
        return dtype.isFloat8() ? Nccl.ncclUint8() : type(dtype);
    }
}
