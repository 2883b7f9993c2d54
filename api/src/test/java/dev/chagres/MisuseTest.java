package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.ops.Dropout;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Tensors of a wrong shape, type or device: each is refused by name, and a good call afterwards works. */
@Tag("L0")
@Tag("L1")
class MisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    private final ModelPlan plan = new ModelPlan();
    private final Linear linear = new Linear(16, 32, Initializer.normal(1), plan.child("linear"));
    private final LayerNorm norm = new LayerNorm(NormConfig.layerNorm(16), plan.child("norm"));
    private final Embedding embedding = new Embedding(5, 16, Initializer.ones(), plan.child("embedding"));
    private final ActivationLayer gelu = new ActivationLayer("gelu", Activation.GELU);
    private Device device;
    private Stream stream;
    private Scope scope;
    private Pass pass;

    @BeforeEach
    void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        Parameters.allocate(device, plan, DType.FLOAT32, 1);
        pass = Pass.training(device).begin();
    }

    @AfterEach
    void goodCallsStillWork() {
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        Tensor y = linear.forward(norm.forward(x, pass), pass);
        assertArrayEquals(new float[96], y.toFloats(stream));
        assertEquals(Shape.of(3, 16), linear.backward(scope.like(y), pass).shape());
        stream.synchronize();
        pass.close();
        device.close();
    }

    @Test
    void wrongShapesRanksAndTypes() {
        String columns = "x: linear expected FLOAT32[T, 16], got ";
        String rank = "x: norm expected [T, columns], got ";
        assertThrown(
                ARGUMENT, columns + "FLOAT32[3, 17]", () -> linear.forward(scope.tensor(DType.FLOAT32, 3, 17), pass));
        assertThrown(
                ARGUMENT,
                rank.replace("norm", "linear") + "FLOAT32[16]",
                () -> linear.forward(scope.tensor(DType.FLOAT32, 16), pass));
        assertThrown(ARGUMENT, rank + "FLOAT32[]", () -> norm.forward(scope.tensor(DType.FLOAT32), pass));
        assertThrown(
                ARGUMENT, rank + "FLOAT32[1, 3, 16]", () -> norm.forward(scope.tensor(DType.FLOAT32, 1, 3, 16), pass));
        assertThrown(
                ARGUMENT,
                columns.replace("linear", "norm") + "FLOAT32[3, 15]",
                () -> norm.forward(scope.tensor(DType.FLOAT32, 3, 15), pass));
        assertThrown(
                ARGUMENT, columns + "BFLOAT16[3, 16]", () -> linear.forward(scope.tensor(DType.BFLOAT16, 3, 16), pass));
        assertThrown(
                ARGUMENT,
                "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[3, 16]",
                () -> linear.forward(scope.tensor(DType.INT32, 3, 16), pass));
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        linear.forward(x, pass);
        assertThrown(
                ARGUMENT,
                "dy: expected FLOAT32[3, 32], got FLOAT32[2, 32]",
                () -> linear.backward(scope.tensor(DType.FLOAT32, 2, 32), pass));
        assertThrown(
                ARGUMENT,
                "dy: expected FLOAT32[3, 32], got BFLOAT16[3, 32]",
                () -> linear.backward(scope.tensor(DType.BFLOAT16, 3, 32), pass));
        Tensor dy = scope.tensor(DType.FLOAT32, 3, 32);
        assertThrown(
                ARGUMENT,
                "dx: expected FLOAT32[3, 16], got FLOAT32[3, 32]",
                () -> linear.backward(dy, scope.like(dy), pass));
        assertThrown(
                ARGUMENT,
                "y: expected FLOAT32[3, 32], got FLOAT32[4, 32]",
                () -> linear.forward(x, scope.tensor(DType.FLOAT32, 4, 32), pass));
        assertThrown(
                ARGUMENT,
                "y: expected FLOAT32[T, 32], got FLOAT32[3, 31]",
                () -> linear.forward(x, scope.tensor(DType.FLOAT32, 3, 31), pass));
        assertThrown(
                ARGUMENT,
                "ids: expected INT32[T], got FLOAT32[3]",
                () -> embedding.forward(scope.tensor(DType.FLOAT32, 3), pass));
    }

    @Test
    void resultsInThePlaceOfArguments() {
        String shared = ": expected memory of its own, got some of ";
        String reason = "'s; it is written to while that is read or written";
        Tensor memory = scope.tensor(DType.FLOAT32, 3, 64);
        memory.zero(stream);
        Tensor x = scope.view(memory, 0, 3, 16);
        Tensor beside = scope.view(memory, 16, 3, 16);
        assertThrown(ARGUMENT, "y" + shared + "x" + reason, () -> norm.forward(x, x, pass));
        assertThrown(ARGUMENT, "y" + shared + "x" + reason, () -> norm.forward(x, beside, pass));
        Tensor y = norm.forward(x, pass);
        Tensor dy = scope.like(y);
        dy.zero(stream);
        assertThrown(ARGUMENT, "dx" + shared + "dy" + reason, () -> norm.backward(dy, dy, pass));
        assertThrown(ARGUMENT, "dx" + shared + "the input" + reason, () -> norm.backward(dy, x, pass));
        assertThrown(ARGUMENT, "dx" + shared + "the input" + reason, () -> norm.backward(dy, beside, pass));
        assertThrown(ARGUMENT, "dx" + shared + "the output" + reason, () -> norm.backward(dy, y, pass));
        assertArrayEquals(new float[48], norm.backward(dy, pass).toFloats(stream));
    }

    @Test
    void integersWhereFloatsAreWanted() {
        Tensor ints = scope.tensor(DType.INT32, 3, 16);
        String text = ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[3, 16]";
        assertThrown(ARGUMENT, "x" + text, () -> gelu.forward(ints, pass));
        assertThrown(ARGUMENT, "x" + text, () -> Elementwise.add(ints, ints, ints, stream));
        assertThrown(
                ARGUMENT,
                "logits: expected [T, at least 2 columns] of floats, got INT32[3, 16]",
                () -> new CrossEntropy(2).forward(ints, scope.tensor(DType.INT32, 3), pass));
        assertThrown(
                ARGUMENT,
                "dtype: expected FLOAT32, BFLOAT16 or FLOAT16, got INT32",
                () -> Parameters.allocate(device, plan, DType.INT32, 1));
    }

    @Test
    void tensorsOfAnotherDevice() {
        try (Device other = Device.open();
                Scope there = other.openScope();
                HostBuffer buffer = HostBuffer.pageable(other, 192)) {
            Tensor x = there.tensor(DType.FLOAT32, 3, 16);
            x.zero(other.stream());
            String text = ": expected a tensor of device 0, got FLOAT32[3, 16] of device 0, opened another time";
            assertThrown(ARGUMENT, "x" + text, () -> linear.forward(x, pass));
            assertThrown(ARGUMENT, "tensor" + text, () -> scope.view(x, 0, 48));
            assertThrown(
                    ARGUMENT,
                    "stream: expected one of device 0, got stream of device 0",
                    () -> scope.tensor(DType.FLOAT32, 3, 16).copyFrom(other.stream(), buffer));
            Tensor mine = scope.tensor(DType.FLOAT32, 3, 16);
            mine.zero(stream);
            try (Pass elsewhere = Pass.training(other).begin()) {
                String parameter =
                        ": expected parameter %s on device 0, where the input lies, got it on device 0, opened"
                                + " another time";
                assertThrown(
                        ARGUMENT, "linear" + parameter.formatted("linear.weight"), () -> linear.forward(x, elsewhere));
                assertThrown(ARGUMENT, "norm" + parameter.formatted("norm.weight"), () -> norm.forward(x, elsewhere));
                Tensor ids = there.tensor(DType.INT32, 3);
                assertThrown(
                        ARGUMENT,
                        "embedding" + parameter.formatted("embedding.weight"),
                        () -> embedding.forward(ids, elsewhere));
                assertThrown(
                        ARGUMENT,
                        "ids" + text.replace("FLOAT32[3, 16]", "INT32[3]"),
                        () -> embedding.forward(ids, pass));
            }
            linear.forward(mine, pass);
            Tensor dy = there.tensor(DType.FLOAT32, 3, 32);
            assertThrown(ARGUMENT, "dy" + text.replace("16]", "32]"), () -> linear.backward(dy, pass));
            assertThrown(ARGUMENT, "dx" + text, () -> linear.backward(scope.tensor(DType.FLOAT32, 3, 32), x, pass));
            assertThrown(ARGUMENT, "y" + text.replace("16]", "32]"), () -> linear.forward(mine, dy, pass));
            assertArrayEquals(new float[48], x.toFloats(other.stream()));
        }
    }

    @Test
    void aTiedWeightWhoseBiasLiesElsewhere() {
        ModelPlan biases = new ModelPlan();
        Linear head = Linear.tied(embedding.weight(), biases.child("head"));
        Tensor x = scope.tensor(DType.FLOAT32, 3, 16);
        x.zero(stream);
        assertThrown(
                IllegalStateException.class,
                "parameter head.bias has no memory yet: call Parameters.allocate",
                () -> head.forward(x, pass));
        try (Device other = Device.open();
                Parameters there = Parameters.allocate(other, biases, DType.FLOAT32, 1)) {
            assertThrown(
                    ARGUMENT,
                    "head: expected parameter head.bias on device 0, where the input lies, got it on device 0, opened"
                            + " another time",
                    () -> head.forward(x, pass));
            assertEquals(5, there.count());
        }
        try (Parameters half = Parameters.allocate(device, biases, DType.BFLOAT16, 1)) {
            assertThrown(
                    ARGUMENT,
                    "head: expected weight and bias of one type, got embedding.weight of FLOAT32 and head.bias of BFLOAT16",
                    () -> head.forward(x, pass));
            assertEquals(DType.BFLOAT16, half.dtype());
        }
        try (Parameters here = Parameters.allocate(device, biases, DType.FLOAT32, 1)) {
            assertArrayEquals(new float[15], head.forward(x, pass).toFloats(stream));
            assertEquals(5, here.count());
        }
        assertThrown(
                ARGUMENT,
                "weight: expected a matrix [out, in], got norm.bias[16]",
                () -> Linear.tied(norm.bias(), biases.child("norm")));
    }

    @Test
    void nothingInsteadOfATensor() {
        assertThrown(NullPointerException.class, "x: expected a value, got null", () -> linear.forward(null, pass));
        assertThrown(NullPointerException.class, "x: expected a value, got null", () -> gelu.forward(null, pass));
        assertThrown(
                NullPointerException.class,
                "initializer: expected a value, got null",
                () -> new Linear(1, 1, null, new ModelPlan()));
        String noPass = "pass: expected a value, got null";
        Tensor x = scope.tensor(DType.FLOAT32, 1, 16);
        assertThrown(NullPointerException.class, noPass, () -> linear.forward(x, null));
        assertThrown(NullPointerException.class, noPass, () -> linear.forward(x, x, null));
        assertThrown(NullPointerException.class, noPass, () -> linear.backward(x, null));
        assertThrown(NullPointerException.class, noPass, () -> linear.backward(x, x, null));
        assertThrown(NullPointerException.class, noPass, () -> embedding.forward(x, null));
        assertThrown(NullPointerException.class, noPass, () -> embedding.backward(x, null));
        assertThrown(NullPointerException.class, noPass, () -> new CrossEntropy(2).forward(x, x, (Pass) null));
        assertThrown(NullPointerException.class, noPass, () -> new CrossEntropy(2).backward(null));
        assertThrown(
                NullPointerException.class,
                "divisor: expected a value, got null",
                () -> new CrossEntropy(2).forward(x, x, null, pass));
        x.zero(stream);
        linear.forward(x, pass);
        assertThrown(NullPointerException.class, "dy: expected a value, got null", () -> linear.backward(null, pass));
        assertThrown(NullPointerException.class, "y: expected a value, got null", () -> linear.forward(x, null, pass));
        assertThrows(NullPointerException.class, () -> Parameters.allocate(device, null, DType.FLOAT32, 1));
    }

    @Test
    void tensorsStreamsAndEventsOfNothing() {
        Tensor three = scope.tensor(DType.FLOAT32, 3);
        Event event = device.openEvent();
        for (Executable call : List.<Executable>of(
                () -> device.openScope(null),
                () -> event.record(null),
                () -> three.set(null, 1f),
                () -> three.zero(null))) {
            assertTrue(assertThrows(NullPointerException.class, call)
                    .getMessage()
                    .matches("(onStream|stream): expected a value, got null"));
        }
        assertThrown(NullPointerException.class, "dtype: expected a value, got null", () -> scope.tensor(null, 3));
        assertThrown(NullPointerException.class, "tensor: expected a value, got null", () -> scope.view(null, 0, 3));
        assertThrown(
                NullPointerException.class,
                "tensor: expected a value, got null",
                () -> scope.reinterpret(null, DType.FLOAT32, 0, 3));
        assertThrown(
                NullPointerException.class,
                "dtype: expected a value, got null",
                () -> scope.reinterpret(three, null, 0, 3));
        assertThrown(NullPointerException.class, "other: expected a value, got null", () -> scope.like(null));
        assertThrown(
                NullPointerException.class,
                "shape: expected a value, got null",
                () -> scope.tensor(DType.FLOAT32, (Shape) null));
        assertThrown(NullPointerException.class, "event: expected a value, got null", () -> stream.await(null));
        assertThrown(NullPointerException.class, "start: expected a value, got null", () -> event.millisSince(null));
        event.close();
    }

    @Test
    void memoryThatBeginsBetweenTwoElements() {
        Tensor bytes = scope.tensor(DType.BYTE, 17);
        Tensor odd = scope.view(bytes, 1, 16);
        assertThrown(
                IllegalArgumentException.class,
                "tensor: expected memory that begins at a multiple of 4 bytes, which elements of FLOAT32 need, got "
                        + odd + " at 0x" + Long.toHexString(odd.address()),
                () -> scope.reinterpret(odd, DType.FLOAT32, 0, 4));
        assertEquals(0, scope.reinterpret(odd, DType.FLOAT32, 0, 0).count());
        assertEquals(4, scope.reinterpret(bytes, DType.FLOAT32, 0, 4).count());
    }

    @Test
    void numbersThatAreNoneAndIdentifiersOutOfRange() {
        Tensor ids = scope.tensor(DType.INT32, 4);
        ids.set(stream, -1, 5, Integer.MAX_VALUE, Integer.MIN_VALUE);
        Tensor rows = embedding.forward(ids, pass);
        assertArrayEquals(new float[64], rows.toFloats(stream), "ids out of range give rows of zeros");
        embedding.backward(rows, pass);
        assertArrayEquals(new float[80], embedding.weight().gradient().toFloats(stream), "and no gradient");
        Tensor logits = scope.tensor(DType.FLOAT32, 4, 7);
        float[] wild = new float[28];
        for (int i = 0; i < wild.length; i++) {
            wild[i] = new float[] {Float.NaN, Float.POSITIVE_INFINITY, -Float.MAX_VALUE, 1}[i % 4];
        }
        logits.set(stream, wild);
        CrossEntropy loss = new CrossEntropy(5);
        Tensor counted = scope.tensor(DType.INT32, 1);
        new dev.chagres.ops.CrossEntropy(5, 0)
                .forward(
                        logits,
                        ids,
                        null,
                        scope.tensor(DType.FLOAT32, 4),
                        null,
                        scope.tensor(DType.FLOAT32, 1),
                        counted,
                        stream);
        assertEquals(0, counted.toInts(stream)[0], "labels out of range do not count");
        assertEquals(0f, loss.forward(logits, ids, pass).toFloats(stream)[0]);
        for (float factor : new float[] {Float.NaN, Float.NEGATIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT, "factor: expected a finite number, got " + factor, () -> loss.backward(factor, pass));
        }
        assertArrayEquals(new float[28], loss.backward(pass).toFloats(stream));
        Tensor x = scope.tensor(DType.FLOAT32, 4, 16);
        float[] numbers = new float[64];
        numbers[3] = Float.NaN;
        numbers[20] = Float.POSITIVE_INFINITY;
        x.set(stream, numbers);
        Tensor wildly = linear.forward(norm.forward(x, pass), pass);
        norm.backward(linear.backward(wildly, pass), pass);
        assertTrue(Float.isNaN(wildly.toFloats(stream)[0]));
    }

    /** A mask belongs to one sum: its size is that of the values, and it is no floating-point number. */
    @Test
    void masksOfOtherSums() {
        Tensor dy = scope.tensor(DType.FLOAT32, 8, 32);
        Tensor dx = scope.like(dy);
        assertThrown(
                ARGUMENT,
                "mask: expected BYTE[32], got BYTE[31]",
                () -> Dropout.dropoutBackward(dy, scope.tensor(DType.BYTE, 31), dx, 0.5f, stream));
        assertThrown(
                ARGUMENT,
                "mask: expected BYTE[32], got FLOAT32[32]",
                () -> Dropout.dropoutBackward(dy, scope.tensor(DType.FLOAT32, 32), dx, 0.5f, stream));
    }
}
