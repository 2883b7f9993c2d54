package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Records a communicator's calls in its rank's {@link FlightRecorder}.
 *
 * <p>Threading: the device's thread.
 */
final class CallRecords {
    final FlightRecorder recorder;
    private final FlightRecorder.Member member;
    private final CurrentCall launch = new CurrentCall();
    private final String name;

    CallRecords(Device device, String name, int rank, int ranks) {
        recorder = FlightRecorder.of(device, rank);
        this.name = name;
        member = new FlightRecorder.Member(name, rank, ranks);
    }

    /** Records the next call. */
    void enter(CurrentCall call, long sequence, @Nullable Stream stream, boolean captured) {
        if (!Group.ofThread().isOpen()) {
            recorder.abandoned(); // calls that were refused before they were passed to NCCL
        }
        call.emit(name);
        recorder.enter(
                member, call, sequence, stream == null ? 0 : stream.handle().address(), captured);
    }

    /** Records that the call, or the group of calls, was passed to NCCL, and its status. */
    void given(int status) {
        if (status == 0) {
            recorder.enqueued();
        } else {
            recorder.abandoned();
        }
    }

    /** Records that a graph is about to run {@code calls}, of which {@code sequence} is the last collective. */
    void launches(CallCounts.Together calls, long sequence) {
        launch.set(Operation.LAUNCH, calls.count(), DType.BYTE, null, 0);
        enter(launch, sequence, null, false);
    }
}
