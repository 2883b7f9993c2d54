package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.CudaException;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.DotProductAttention;
import dev.chagres.ops.Elementwise;
import dev.chagres.pass.Pass;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a graph records, refuses, replays and keeps. */
@Tag("L0")
@Tag("L1")
class GraphTest {
    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private static String refusal(Runnable call) {
        return assertThrows(IllegalStateException.class, call::run).getMessage();
    }

    @Test
    void launchesReadWhatLiesThereByThen() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 4);
            x.set(stream, 1, 2, 3, 4f);
            Tensor y = scope.like(x);
            y.zero(stream);
            Elementwise.add(x, x, y, stream);
            try (Graph graph = stream.capture(() -> {
                Elementwise.add(y, x, y, stream);
                Elementwise.add(y, x, y, stream);
            })) {
                assertEquals(2, graph.nodes());
                assertArrayEquals(new float[] {2, 4, 6, 8}, y.toFloats(stream), "recorded, not run");
                graph.launch();
                assertArrayEquals(new float[] {4, 8, 12, 16}, y.toFloats(stream));
                x.set(stream, 10, 0, 0, 0f);
                graph.launch();
                graph.launch();
                assertArrayEquals(new float[] {44, 8, 12, 16}, y.toFloats(stream));
                assertEquals("graph of 2 nodes on stream of device 0", graph.toString());
            }
        }
    }

    /** A node that fills memory costs the host a microsecond at each launch, so up to 1 MiB is zeroed by kernels in a capture. */
    @ParameterizedTest
    @CsvSource({
        "0, 0, 0",
        "0, 1, 0",
        "1, 3, 0",
        "8, 8, 0",
        "0, 4096, 0",
        "0, 4097, 0",
        "3, 5000, 0",
        "256, 65536, 0",
        "257, 65537, 0",
        "3, 1048576, 0",
        "3, 1048577, 1",
        "256, 2000000, 1"
    })
    void smallZerosAreKernels(int first, int count, int fills) {
        Stream stream = device.stream();
        int size = (first + count) / Integer.BYTES + 100;
        try (Scope scope = device.openScope()) {
            Tensor whole = scope.tensor(DType.INT32, size);
            int[] before = new int[size];
            Arrays.fill(before, -1);
            whole.set(stream, before);
            Tensor part = scope.view(scope.reinterpret(whole, DType.BYTE, 0, whole.byteSize()), first, count);
            try (Graph graph = stream.capture(() -> part.zero(stream))) {
                assertEquals(fills, graph.fills());
                graph.launch();
            }
            ByteBuffer expected = ByteBuffer.allocate(size * Integer.BYTES).order(ByteOrder.nativeOrder());
            Arrays.fill(expected.array(), (byte) -1);
            Arrays.fill(expected.array(), first, first + count, (byte) 0);
            int[] ints = new int[size];
            expected.asIntBuffer().get(ints);
            assertArrayEquals(ints, whole.toInts(stream));
        }
    }

    @Test
    void fillsOfLibrariesAreCounted() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 4);
            try (Graph graph = stream.capture(() -> {
                assertEquals(0, AddressCalls.cudaMemsetAsync(x.address(), 0, 16, stream.handle()));
                Elementwise.add(x, x, x, stream);
            })) {
                assertEquals(2, graph.nodes());
                assertEquals(1, graph.fills());
            }
        }
    }

    @Test
    void whatEndsIsNotClosedInsideACapture() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope()) {
            Tensor x = scope.tensor(DType.FLOAT32, 4);
            x.zero(stream);
            try (Graph graph = stream.capture(() -> Elementwise.add(x, x, x, stream))) {
                String reason =
                        ": a stream of device 0 captures, and what waits for the device or reads the host's memory"
                                + " cannot be part of a graph; call it before Stream.capture or after the launch";
                refused("close" + reason, graph::close);
                refused("close" + reason, device::close);
                refused("detach" + reason, device::detach);
                refused("close" + reason, scope::close);
                graph.launch();
                stream.synchronize();
            }
        }
    }

    @Test
    void whatWaitsOrCopiesIsRefusedAndTheStreamStaysUsable() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope();
                Event event = device.openEvent();
                Stream other = device.openStream();
                HostBuffer host = HostBuffer.pinned(device, 16)) {
            Tensor x = scope.tensor(DType.FLOAT32, 4);
            x.zero(stream);
            event.record(stream);
            String end =
                    ": a stream of device 0 captures, and what waits for the device or reads the host's memory cannot be"
                            + " part of a graph; call it before Stream.capture or after the launch";
            refused("synchronize" + end, stream::synchronize);
            refused("synchronize" + end, device::synchronize);
            refused("synchronize" + end, event::synchronize);
            refused("isDone" + end, event::isDone);
            refused("millisSince" + end, () -> event.millisSince(event));
            refused("pinned" + end, () -> HostBuffer.pinned(device, 16));
            refused("copyTo" + end, () -> x.toFloats(stream));
            refused("copyTo" + end, () -> x.copyTo(stream, host));
            refused("copyFrom" + end, () -> x.copyFrom(stream, host));
            refused("copyFrom" + end, () -> x.set(stream, 1, 2, 3, 4f));
            refused("close" + end, other::close);
            refused("capture" + end, () -> other.capture(() -> {}));
            refused(
                    "memory: 268435456 bytes are wanted while a stream of device 0 captures, when CUDA gives none; run the same"
                            + " work once before the capture, and begin its scopes and passes again, so that they have their"
                            + " memory",
                    () -> scope.tensor(DType.BYTE, 256 << 20));
            assertArrayEquals(new float[4], x.toFloats(stream));
        }
    }

    /** CUDA refuses some calls on every device of a thread that captures, and the capture with them. */
    @Test
    void whatTheThreadMayNotCallOnOtherDevicesIsRefused() {
        try (Device other = Device.open();
                Scope theirs = other.openScope();
                Event event = other.openEvent()) {
            event.record(other.stream());
            String end =
                    ": a stream of device 0 captures, and what waits for the device or reads the host's memory cannot be"
                            + " part of a graph; call it before Stream.capture or after the launch";
            refused("pinned" + end, () -> HostBuffer.pinned(other, 16));
            refused("capture" + end, () -> other.stream().capture(() -> {}));
            refused("synchronize" + end, other::synchronize);
            refused("close" + end, theirs::close);
            refused("close" + end, other::close);
            refused("isDone" + end, event::isDone);
            refused("synchronize" + end, event::synchronize);
            refused("millisSince" + end, () -> event.millisSince(event));
            refused(
                    "memory: 268435456 bytes are wanted while a stream of device 0 captures, when CUDA gives none; run the same"
                            + " work once before the capture, and begin its scopes and passes again, so that they have their"
                            + " memory",
                    () -> theirs.tensor(DType.BYTE, 256 << 20));
            assertTrue(event.isDone());
            theirs.tensor(DType.BYTE, 256 << 20);
        }
    }

    /** A mark inside a graph orders the graph's work; nobody can wait for it. */
    @Test
    void anEventOfACaptureIsNoMarkOutside() {
        Stream stream = device.stream();
        try (Event event = device.openEvent();
                Graph graph = stream.capture(() -> event.record(stream))) {
            graph.launch();
            String end =
                    ": expected an event that was recorded outside of a capture, got one that was last recorded inside of"
                            + " one, where it only orders the graph's work; call record(stream) after the launch";
            assertEquals("isDone" + end, refusal(event::isDone));
            assertEquals("synchronize" + end, refusal(event::synchronize));
            assertEquals("millisSince" + end, refusal(() -> event.millisSince(event)));
            event.record(stream);
            event.synchronize();
            assertTrue(event.isDone());
        }
    }

    private void refused(String text, Runnable call) {
        assertEquals(text, refusal(() -> device.stream().capture(call)));
        device.synchronize();
    }

    @Test
    void anExceptionEndsTheCapture() {
        Stream stream = device.stream();
        RuntimeException thrown = assertThrows(
                RuntimeException.class,
                () -> stream.capture(() -> {
                    throw new RuntimeException("mine");
                }));
        assertEquals("mine", thrown.getMessage());
        assertEquals(
                "body: expected a value, got null",
                assertThrows(NullPointerException.class, () -> stream.capture(null))
                        .getMessage());
        stream.capture(() -> {}).close();
    }

    @Test
    void cudaRefusesToDependOnWorkOutside() {
        try (Event event = device.openEvent()) {
            event.record(device.stream());
            CudaException refused = assertThrows(
                    CudaException.class,
                    () -> device.stream().capture(() -> device.stream().await(event)));
            assertTrue(refused.getMessage().contains("cudaErrorStreamCaptureIsolation"), refused.getMessage());
            assertTrue(
                    refused.getMessage()
                            .endsWith(
                                    "a stream is being captured into a graph: make this call before the capture or after"
                                            + " the launch, and record events that the captured work waits for inside the capture"),
                    refused.getMessage());
        }
        device.synchronize();
    }

    @Test
    void streamsJoinThroughEvents() {
        Stream stream = device.stream();
        try (Scope scope = device.openScope();
                Stream side = device.openStream();
                Event fork = device.openEvent();
                Event join = device.openEvent()) {
            Tensor x = scope.tensor(DType.FLOAT32, 2);
            x.set(stream, 1, 2f);
            try (Graph graph = stream.capture(() -> {
                fork.record(stream);
                side.await(fork);
                Elementwise.add(x, x, x, side);
                join.record(side);
                stream.await(join);
            })) {
                graph.launch();
                graph.launch();
                assertArrayEquals(new float[] {4, 8}, x.toFloats(stream));
            }
        }
    }

    @Test
    void keepsMemoryUntilItCloses() {
        Stream stream = device.stream();
        Scope scope = device.openScope();
        Tensor x = scope.tensor(DType.FLOAT32, 4 << 20);
        x.zero(stream);
        Graph first = stream.capture(() -> Elementwise.add(x, x, x, stream));
        Graph second = stream.capture(() -> {});
        // Of this device alone: on a GPU, other processes take and give back memory meanwhile.
        long before = device.heldBytes();
        scope.close();
        assertEquals(before, device.heldBytes(), "kept");
        first.launch();
        stream.synchronize();
        second.close();
        assertTrue(device.heldBytes() > before - (16 << 20), "the older graph uses it");
        first.close();
        assertTrue(device.heldBytes() <= before - (16 << 20), "given back");
        first.close();
        assertEquals("graph of device 0 is closed", refusal(first::launch));
    }

    @Test
    void offsetsThatAGraphReadsAreStillOffsets() {
        Stream stream = device.stream();
        DotProductAttention attention = new DotProductAttention(AttentionConfig.of(2, 16, AttentionMask.none()));
        Scope lengths = device.openScope();
        Scope starts = device.openScope();
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Tensor q = scope.tensor(DType.FLOAT32, 16, 2, 16);
            q.zero(stream);
            Sequences sequences = Sequences.packed(lengths, 8, 8);
            Runnable work = () -> {
                pass.begin(sequences);
                attention.forward(q, q, q, pass);
            };
            work.run();
            RotaryEmbedding rotary = RotaryEmbedding.of(scope, 64, 16);
            Sequences started = Sequences.packed(scope, 8, 8).startingAt(starts, 1, 2);
            Tensor rotated = scope.like(q);
            try (Graph graph = stream.capture(() -> rotary.forward(q, rotated, started, stream))) {
                graph.launch();
                starts.restart();
                assertEquals(handedOut("the start positions"), refusal(graph::launch));
            }
            pass.end();
            try (Graph graph = stream.capture(work)) {
                graph.launch();
                lengths.restart();
                lengths.tensor(DType.INT32, 3).set(stream, 0, 1_000_000_000, 2_000_000_000);
                assertEquals(handedOut("the offsets of the CuSeqlens"), refusal(graph::launch));
            }
        }
        starts.close();
        lengths.close();
    }

    private static String handedOut(String what) {
        return "launch: the scope that holds " + what
                + " was restarted since the capture, and may have handed out their"
                + " memory for something else; make them again, in a scope that stays as it is, and capture again";
    }

    /** The graph keeps memory of a closed scope as it is, so that launches may trust it. */
    @Test
    void offsetsOfAClosedScopeStay() {
        Stream stream = device.stream();
        DotProductAttention attention = new DotProductAttention(AttentionConfig.of(2, 16, AttentionMask.none()));
        Scope lengths = device.openScope();
        try (Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Tensor q = scope.tensor(DType.FLOAT32, 16, 2, 16);
            q.zero(stream);
            Sequences sequences = Sequences.packed(lengths, 8, 8);
            Runnable work = () -> {
                pass.begin(sequences);
                attention.forward(q, q, q, pass);
            };
            work.run();
            pass.end();
            try (Graph graph = stream.capture(work)) {
                lengths.close();
                graph.launch();
            }
        }
    }
}
