package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import java.lang.foreign.MemorySegment;

/**
 * A sum over ranks of values that each rank first multiplies by its own factor.
 *
 * <p>It belongs to one communicator and one type, and can be closed as soon as the last collective that uses it has returned.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ncclRedOpCreatePreMulSum} and {@code ncclRedOpDestroy} of {@code nccl.h}.
 */
public final class PremultipliedSum implements Reduction, AutoCloseable {
    private final Endpoint endpoint;
    private final DType dtype;
    private final int code;
    private boolean closed;

    PremultipliedSum(Endpoint endpoint, DType dtype, int code) {
        this.endpoint = endpoint;
        this.dtype = dtype;
        this.code = code;
    }

    /** Returns the type of the values that it sums. */
    public DType dtype() {
        return dtype;
    }

    /** Returns NCCL's number, after a check that the sum is open and belongs to this communicator and type. */
    int codeFor(Endpoint user, DType used) {
        if (closed) {
            throw new IllegalStateException("reduction: the pre-multiplied sum of " + dtype + " is closed");
        }
        if (user != endpoint) {
            String which = endpoint.toString().equals(user.toString()) ? "another of that name" : endpoint.toString();
            throw new IllegalArgumentException("reduction: expected a pre-multiplied sum of " + user + ", got one of "
                    + which + "; make one with Communicator.premultipliedSum");
        }
        if (used != dtype) {
            throw new IllegalArgumentException(
                    "reduction: expected a pre-multiplied sum of " + used + ", got one of " + dtype);
        }
        return code;
    }

    /**
     * Destroys the operation. A second call, or one after the communicator's close, does nothing.
     *
     * @throws IllegalStateException inside {@code Communicator.group}, whose collectives run at its end
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        if (endpoint.isOpen()) {
            MemorySegment comm = endpoint.handle(); // throws on another thread: the sum stays open
            endpoint.state.ensureNotGrouping("close");
            closed = true;
            Status.nccl(Nccl.ncclRedOpDestroy(code, comm), "ncclRedOpDestroy");
        }
        closed = true;
    }

    @Override
    public String toString() {
        return "pre-multiplied sum of " + dtype;
    }
}
