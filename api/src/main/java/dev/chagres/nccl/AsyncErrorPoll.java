package dev.chagres.nccl;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.concurrent.locks.LockSupport;

/**
 * Asks NCCL for errors of calls that had returned, and waits with a timeout.
 *
 * <p>Threading: the device's thread.
 */
final class AsyncErrorPoll {
    private static final int NOT_READY = 600;
    /** Waiting begins with polling, since most waits are short. */
    private static final int EAGER_LOOKS = 1000;

    private static final long PAUSE_NANOS = 50_000;

    private AsyncErrorPoll() {}

    static void check(Endpoint endpoint) {
        endpoint.ensureUsable();
        MemorySegment out = endpoint.state.out();
        MemorySegment handle = endpoint.handle();
        if (!endpoint.failures.enter()) {
            endpoint.ensureUsable(); // It throws the failure for which NCCL revokes the communicator.
            return;
        }
        int status;
        try {
            Status.nccl(Nccl.ncclCommGetAsyncError(handle, out), "ncclCommGetAsyncError");
            status = out.get(ValueLayout.JAVA_INT, 0);
        } finally {
            endpoint.failures.leave();
        }
        if (status != 0 && status != Nccl.ncclInProgress()) {
            endpoint.failures.settle(status, "ncclCommGetAsyncError", endpoint.calls.called());
        }
    }

    static void synchronize(Endpoint endpoint, Stream stream) {
        endpoint.ensureUsable();
        if (Checks.given("stream", stream).device() != endpoint.device) {
            throw new IllegalArgumentException("stream: expected a stream of " + endpoint.device + ", got one of "
                    + Checks.other(stream.device(), endpoint.device));
        }
        endpoint.state.ensureNotCapturing("synchronize");
        Group.refuse("synchronize");
        endpoint.state.waits().begin();
        try {
            await(endpoint, stream);
        } finally {
            endpoint.state.waits().end();
        }
        check(endpoint);
        endpoint.calls.recorder().completed(stream.handle().address());
    }

    private static void await(Endpoint endpoint, Stream stream) {
        long begin = System.nanoTime();
        long timeout = endpoint.config.timeout().toNanos();
        for (int look = 0; !isIdle(stream); look++) {
            check(endpoint);
            if (System.nanoTime() - begin > timeout) {
                Watchdog.timeOut(endpoint);
                check(endpoint);
            }
            if (look < EAGER_LOOKS) {
                Thread.onSpinWait();
            } else {
                LockSupport.parkNanos(PAUSE_NANOS);
            }
        }
    }

    private static boolean isIdle(Stream stream) {
        int status = CudaRuntime.cudaStreamQuery(stream.handle());
        if (status == NOT_READY) {
            // CUDA keeps it as the thread's last error, which TE would take for a failure of its own next call.
            CudaRuntime.cudaGetLastError();
            return false;
        }
        Status.cuda(status, "cudaStreamQuery");
        return true;
    }
}
