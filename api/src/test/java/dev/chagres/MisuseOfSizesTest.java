package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.CudaException;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.te.TensorLists;
import java.lang.foreign.MemorySegment;
import java.util.function.IntFunction;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Sizes that no memory has, and parts outside of a whole: each is refused by name, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseOfSizesTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    private Device device;
    private Stream stream;
    private Scope scope;

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
    }

    @AfterEach
    void goodCallsStillWork() {
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        assertArrayEquals(new float[48], x.toFloats(stream));
        device.close();
    }

    @Test
    void sizesThatNoMemoryHas() {
        assertThrown(ARGUMENT, "shape: expected no negative size, got [2, -3]", () -> scope.tensor(DType.BYTE, 2, -3));
        assertThrown(
                ARGUMENT,
                "shape: expected at most 9223372036854775807 bytes, got INT64[1152921504606846976]",
                () -> scope.tensor(DType.INT64, 1L << 60));
        assertThrown(
                ARGUMENT,
                "shape: expected at most 9223372036854775807 bytes, got BYTE[9223372036854775807, 9223372036854775807, 3, 2]",
                () -> scope.tensor(DType.BYTE, Long.MAX_VALUE, Long.MAX_VALUE, 3, 2));
        for (long size : new long[] {1L << 44, 1L << 60, Long.MAX_VALUE / 4}) {
            CudaException thrown = assertThrows(CudaException.class, () -> scope.tensor(DType.FLOAT32, size));
            assertEquals("cudaErrorMemoryAllocation", thrown.codeName());
            assertTrue(scope.tensor(DType.FLOAT32, 5).isLive());
        }
        assertThrown(
                ArithmeticException.class,
                "count of [9223372036854775807, 2]: expected at most 9223372036854775807 elements",
                () -> Shape.of(Long.MAX_VALUE, 2).count());
        assertEquals(
                0,
                Shape.of(Long.MAX_VALUE, Long.MAX_VALUE, 0).count()
                        * Shape.of(0, Long.MAX_VALUE, 9).count());
    }

    @Test
    void layersOfImpossibleSize() {
        ModelPlan huge = new ModelPlan();
        assertThrown(ARGUMENT, "inputs: expected at least 1, got 0", () -> new Linear(0, 4, Initializer.zeros(), huge));
        assertThrown(
                ARGUMENT, "outputs: expected at least 1, got -4", () -> new Linear(4, -4, Initializer.zeros(), huge));
        assertThrown(
                ARGUMENT,
                "vocabulary: expected at least 1, got -1",
                () -> new Embedding(-1, 4, Initializer.zeros(), huge));
        assertThrown(
                ARGUMENT, "hidden: expected at least 1, got 0", () -> new Embedding(4, 0, Initializer.zeros(), huge));
        AttentionConfig attention = AttentionConfig.of(4, 16, AttentionMask.none());
        assertThrown(
                ARGUMENT, "hidden: expected at least 1, got 0", () -> TransformerLayerConfig.encoder(0, attention));
        assertThrown(
                ARGUMENT,
                "hidden: expected at least 1, got -64",
                () -> TransformerLayerConfig.decoder(-64, attention, attention));
        assertThrown(
                ARGUMENT,
                "weight: expected 1 to 4 dimensions and, with all declared before it, at most 576460752303423487"
                        + " elements, got [4611686018427387904, 4611686018427387904]",
                () -> new Linear(1L << 62, 1L << 62, Initializer.zeros(), huge));
        assertThrown(
                ARGUMENT,
                "scalar: expected 1 to 4 dimensions and, with all declared before it, at most 576460752303423487"
                        + " elements, got []",
                () -> huge.declare("scalar", Initializer.zeros()));
        Linear large = new Linear(1L << 20, 1L << 24, Initializer.zeros(), huge.child("zeros"));
        assertEquals(1L << 44, large.weight().shape().count());
        assertThrows(CudaException.class, () -> Parameters.allocate(device, huge, DType.BFLOAT16, 1));
        new Linear(1L << 20, 1L << 24, Initializer.normal(1), huge.child("drawn"));
        assertThrows(CudaException.class, () -> Parameters.allocate(device, huge, DType.BFLOAT16, 1));
        try (Pass pass = Pass.training(device).begin()) {
            assertThrown(
                    IllegalStateException.class,
                    "parameter zeros.weight has no memory yet: call Parameters.allocate",
                    () -> large.forward(scope.tensor(DType.BFLOAT16, 0, 1L << 20), pass));
        }
    }

    @Test
    void viewsOutsideTheirTensor() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 4, 5);
        String text = "offset: expected elements within Tensor FLOAT32[4, 5], got ";
        assertThrown(ARGUMENT, text + "21 from 0 on", () -> scope.view(tensor, 0, 21));
        assertThrown(ARGUMENT, text + "1 from 20 on", () -> scope.view(tensor, 20, 1));
        assertThrown(ARGUMENT, text + "1 from -1 on", () -> scope.view(tensor, -1, 1));
        assertThrown(ARGUMENT, text + "2 from 9223372036854775807 on", () -> scope.view(tensor, Long.MAX_VALUE, 2));
        assertThrown(ARGUMENT, "shape: expected no negative size, got [-1]", () -> scope.view(tensor, 0, -1));
        Tensor none = scope.view(tensor, 20, 0);
        assertArrayEquals(new float[0], none.toFloats(stream));
    }

    @Test
    void dimensionsLayersAndListsThatAreNotThere() {
        assertThrown(
                IndexOutOfBoundsException.class,
                "index: expected 0 to 1, got 2",
                () -> Shape.of(4, 5).size(2));
        assertThrown(
                IndexOutOfBoundsException.class,
                "index: expected none, for a scalar has no dimension, got 0",
                () -> Shape.of().size(0));
        for (long count : new long[] {0, Long.MAX_VALUE}) {
            assertThrown(
                    ARGUMENT, "buffers: expected at least one, got none", () -> TensorLists.ofRange(scope, 0, count));
        }
        for (int count : new int[] {Integer.MIN_VALUE, -1, 0, 65_537, Integer.MAX_VALUE}) {
            assertThrown(ARGUMENT, "count: expected 1 to 65536, got " + count, () -> Sequential.of(count, i -> null));
        }
        @SuppressWarnings({"unchecked", "rawtypes"}) // What a program can do all the same.
        IntFunction<Layer> cast = (IntFunction) i -> "a text";
        assertThrown(ARGUMENT, "maker: expected a layer for 0, got a java.lang.String", () -> Sequential.of(2, cast));
        assertThrown(
                NullPointerException.class,
                "maker.apply(0): expected a value, got null",
                () -> Sequential.of(2, i -> null));
        TensorSource source =
                TensorSource.of(new TensorSpec("a", DType.FLOAT32, Shape.of(4)), MemorySegment.ofArray(new float[4]));
        try (HostBuffer host = HostBuffer.pageable(device, 8)) {
            for (long offset : new long[] {-1, 9, Long.MAX_VALUE}) {
                assertThrown(
                        ARGUMENT,
                        "offset: expected bytes of the 16 of \"a\" FLOAT32[4], got 8 from " + offset + " on",
                        () -> source.copyTo(offset, host.segment()));
            }
            source.copyTo(8, host.segment());
        }
    }

    @Test
    void copiesOfAnotherSize() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 4);
        assertThrown(ARGUMENT, "values: expected 4 for FLOAT32[4], got 0", () -> tensor.set(stream, new float[0]));
        try (HostBuffer small = HostBuffer.pageable(device, 15)) {
            assertThrown(
                    ARGUMENT,
                    "source: expected at least 16 bytes for FLOAT32[4], got 15",
                    () -> tensor.copyFrom(stream, small));
            assertThrown(
                    ARGUMENT,
                    "target: expected at least 16 bytes for FLOAT32[4], got 15",
                    () -> tensor.copyTo(stream, small));
            small.close();
            assertThrown(IllegalStateException.class, "host buffer is closed", () -> tensor.copyFrom(stream, small));
        }
        Tensor flat = scope.tensor(DType.FLOAT32, 8);
        Tensor front = scope.view(flat, 0, 4);
        Tensor middle = scope.view(flat, 2, 4);
        assertThrown(
                ARGUMENT,
                "this tensor: expected memory of its own, got some of source's; it is written to while that is read",
                () -> front.copyFrom(stream, middle));
    }
}
