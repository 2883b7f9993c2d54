package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.StepWork;
import dev.chagres.ops.Elementwise;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Numbers that the host writes for each step, of graphs and of steps that are enqueued one by one. */
@Tag("L0")
@Tag("L1")
class GraphScalarsTest {
    private static final int LAUNCHES = 500;
    /** Graphs that are captured and closed while another one lives. */
    private static final int CLOSED = 100;

    private final Device device = Device.open();
    private final Stream stream = device.stream();
    private final Scope scope = device.openScope();
    private final Arena arena = Arena.ofConfined();

    @AfterEach
    void close() {
        scope.close();
        arena.close();
        device.close();
    }

    /** Writes the number of the step, from 1 on, to each element of a tensor. */
    private final class Counted implements StepWork {
        private final Tensor target;
        private final MemorySegment host;
        private int count;

        Counted(Tensor target) {
            this.target = target;
            host = arena.allocate(target.byteSize());
        }

        @Override
        public long byteSize() {
            return target.byteSize();
        }

        @Override
        public long address() {
            return target.address();
        }

        @Override
        public MemorySegment numbers() {
            for (int i = 0; i < target.count(); i++) {
                host.setAtIndex(ValueLayout.JAVA_FLOAT, i, count + 1f);
            }
            return host;
        }

        @Override
        public void count() {
            count++;
        }
    }

    /**
     * Two graphs and enqueued steps in turn, without a wait: each adds the number of its own step. A GPU decides: there the work before
     * the reads takes longer than the host needs to write the next launches' numbers. Launches of the reference run at once.
     */
    @Test
    void eachLaunchReadsItsOwnNumbers() {
        Tensor first = scope.tensor(DType.FLOAT32, 3);
        Tensor second = scope.tensor(DType.FLOAT32, 5);
        Tensor sum = scope.like(first);
        Tensor other = scope.like(second);
        sum.zero(stream);
        other.zero(stream);
        Tensor busy = scope.tensor(DType.FLOAT32, Provider.current() == Provider.CUDA ? 32 << 20 : 1);
        busy.zero(stream);
        Counted counted = new Counted(first);
        Counted alike = new Counted(second);
        Runnable step = () -> {
            Elementwise.add(busy, busy, busy, stream);
            Inside.eachStep(stream, counted);
            Elementwise.add(sum, first, sum, stream);
            Inside.eachStep(stream, alike);
            Elementwise.add(other, second, other, stream);
        };
        step.run();
        try (Graph one = stream.capture(step);
                Graph another = stream.capture(step)) {
            for (int i = 0; i < LAUNCHES; i++) {
                one.launch();
                another.launch();
                another.launch();
                step.run();
            }
            int steps = 1 + 4 * LAUNCHES;
            float expected = steps * (steps + 1) / 2f;
            assertArrayEquals(new float[] {expected, expected, expected}, sum.toFloats(stream));
            assertArrayEquals(new float[] {expected, expected, expected, expected, expected}, other.toFloats(stream));
        }
    }

    /** The memory of a closed graph's numbers does not wait for older and newer graphs that live. */
    @Test
    void aClosedGraphGivesItsNumbersBack() {
        Tensor number = scope.tensor(DType.FLOAT32, 1);
        Counted counted = new Counted(number);
        try (Graph living = stream.capture(() -> Inside.eachStep(stream, counted))) {
            long held = device.heldBytes();
            for (int i = 0; i < CLOSED; i++) {
                try (Graph closed = stream.capture(() -> Inside.eachStep(stream, counted));
                        Graph newer = stream.capture(() -> Inside.eachStep(stream, counted))) {
                    newer.launch();
                    closed.launch();
                }
                assertEquals(held, device.heldBytes());
                assertThrows(
                        IllegalStateException.class,
                        () -> stream.capture(() -> {
                            throw new IllegalStateException("a capture that fails");
                        }));
                assertEquals(held, device.heldBytes());
            }
            living.launch();
            assertArrayEquals(new float[] {2 * CLOSED + 1}, number.toFloats(stream));
        }
    }

    /** What joins a capture from another stream would be recorded with the numbers of now. */
    @Test
    void numbersAreThoseOfTheStreamThatCaptures() {
        Tensor number = scope.tensor(DType.FLOAT32, 1);
        number.zero(stream);
        Counted counted = new Counted(number);
        try (Stream side = device.openStream();
                Event fork = device.openEvent();
                Event join = device.openEvent();
                Graph graph = stream.capture(() -> {
                    fork.record(stream);
                    side.await(fork);
                    CaptureException refused =
                            assertThrows(CaptureException.class, () -> Inside.eachStep(side, counted));
                    assertEquals(
                            "step: expected passes and optimizers on the stream that captures, got one on another stream of"
                                    + " device 0, whose rate and random numbers a graph would repeat at each launch; capture the"
                                    + " stream of the pass and the parameters",
                            refused.getMessage());
                    join.record(side);
                    stream.await(join);
                })) {
            graph.launch();
            assertArrayEquals(new float[1], number.toFloats(stream));
            assertEquals(0, counted.count);
            Inside.eachStep(side, counted);
            side.synchronize();
            assertArrayEquals(new float[] {1}, number.toFloats(stream));
        }
    }

    @Test
    void aGraphHasRoomForSoMany() {
        Counted large = new Counted(scope.tensor(DType.FLOAT32, 2048));
        CaptureException refused = assertThrows(
                CaptureException.class,
                () -> stream.capture(() -> {
                    Inside.eachStep(stream, large);
                    Inside.eachStep(stream, large);
                    Inside.eachStep(stream, large);
                }));
        assertEquals(
                "capture: expected at most 16384 bytes of rates and other numbers that change from launch to launch, got"
                        + " 24576; capture fewer micro-batches, or an optimizer of fewer groups",
                refused.getMessage());
        stream.synchronize();
    }
}
