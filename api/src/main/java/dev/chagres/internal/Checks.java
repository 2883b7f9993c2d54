package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Checks of arguments before a call: each message names the argument, what was expected and what came.
 *
 * <p>Threading: the device's thread.
 */
public final class Checks {
    private static final int VECTOR_BYTES = 16;

    private Checks() {}

    /** Checks that {@code tensor} may be used on {@code stream}: usable now, and on the stream's device. */
    public static Tensor on(Stream stream, String argument, Tensor tensor) {
        given("stream", stream);
        given(argument, tensor).address();
        ensureDevice(stream, argument, tensor);
        return tensor;
    }

    /**
     * Checks that 32 bits count the elements, with which a kernel of TE numbers them.
     *
     * @throws IllegalArgumentException when there are more
     */
    public static void countedIn32Bits(String argument, Tensor tensor) {
        if (tensor.count() > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(argument + ": expected at most " + Integer.MAX_VALUE
                    + " elements, which TE counts in 32 bits, got " + describe(tensor));
        }
    }

    /** Returns the text of {@code thrown}, or its class if that throws. */
    public static String describe(Throwable thrown) {
        try {
            return thrown.toString();
        } catch (Throwable unsaid) {
            return thrown.getClass().getName();
        }
    }

    /** Names {@code device} in an error that expected {@code expected}: it may be the same device, opened again. */
    public static String other(Device device, Device expected) {
        return device + (device.index() == expected.index() ? ", opened another time" : "");
    }

    private static void ensureDevice(Stream stream, String argument, Tensor tensor) {
        if (Inside.state(tensor) != Inside.state(stream)) {
            int wanted = stream.device().index();
            String which = tensor.deviceIndex() == wanted ? ", opened another time" : "";
            throw new IllegalArgumentException(argument + ": expected a tensor of device " + wanted + ", got "
                    + describe(tensor) + " of device " + tensor.deviceIndex() + which);
        }
    }

    /** Checks that {@code tensor} is a matrix of {@code columns} columns and type {@code dtype} on the stream's device. */
    public static Tensor matrix(Stream stream, String argument, Tensor tensor, DType dtype, long columns) {
        on(stream, argument, tensor);
        if (tensor.rank() != 2 || tensor.size(1) != columns || tensor.dtype() != dtype) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[T, " + columns + "], got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} is a matrix of exactly this shape. */
    public static Tensor matrix(Stream stream, String argument, Tensor tensor, DType dtype, long rows, long columns) {
        matrix(stream, argument, tensor, dtype, columns);
        if (tensor.size(0) != rows) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[" + rows + ", " + columns + "], got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} is a matrix of floating-point numbers on the stream's device. */
    public static Tensor matrix(Stream stream, String argument, Tensor tensor) {
        on(stream, argument, tensor);
        if (tensor.rank() != 2 || !tensor.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    argument + ": expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} has as many elements as {@code model}, in any shape, on the stream's device. */
    public static Tensor counted(Stream stream, String argument, Tensor tensor, Tensor model) {
        on(stream, argument, tensor);
        if (tensor.count() != model.count()) {
            throw new IllegalArgumentException(
                    argument + ": expected " + model.count() + " elements, got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} has elements of type {@code dtype} on the stream's device. */
    public static Tensor typed(Stream stream, String argument, Tensor tensor, DType dtype) {
        on(stream, argument, tensor);
        if (tensor.dtype() != dtype) {
            throw new IllegalArgumentException(
                    argument + ": expected elements of " + dtype + ", got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} is a vector of exactly this size. */
    public static Tensor vector(Stream stream, String argument, Tensor tensor, DType dtype, long size) {
        on(stream, argument, tensor);
        if (tensor.rank() != 1 || tensor.size(0) != size || tensor.dtype() != dtype) {
            throw new IllegalArgumentException(
                    argument + ": expected " + dtype + "[" + size + "], got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} has the type and shape of {@code model}, on the stream's device. */
    public static Tensor like(Stream stream, String argument, Tensor tensor, Tensor model) {
        shaped(stream, argument, tensor, model);
        if (tensor.dtype() != model.dtype()) {
            throw new IllegalArgumentException(
                    argument + ": expected " + describe(model) + ", got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} has the shape of {@code model}, whatever its type, on the stream's device. */
    public static Tensor shaped(Stream stream, String argument, Tensor tensor, Tensor model) {
        on(stream, argument, tensor);
        boolean same = tensor.rank() == model.rank();
        for (int i = 0; same && i < model.rank(); i++) {
            same = tensor.size(i) == model.size(i);
        }
        if (!same) {
            throw new IllegalArgumentException(
                    argument + ": expected " + describe(model) + ", got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor} has elements that are floating-point numbers. */
    public static Tensor floats(Stream stream, String argument, Tensor tensor) {
        on(stream, argument, tensor);
        if (!tensor.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    argument + ": expected elements of FLOAT32, FLOAT16 or BFLOAT16, got " + describe(tensor));
        }
        return tensor;
    }

    /** Checks that {@code tensor}, which is written to, may be: offsets and angles that were checked once may not. */
    public static void writable(String argument, Tensor tensor) {
        if (Inside.isFixed(tensor)) {
            throw new IllegalArgumentException(
                    argument + ": expected a tensor whose elements may change, got the offsets"
                            + " of a CuSeqlens or the angles of a RotaryEmbedding, which are trusted once made");
        }
        if (Inside.isShared(tensor)) {
            throw new IllegalArgumentException(
                    argument + ": expected a tensor whose elements may change, got a weight that threads share, which"
                            + " nobody may write to until its SharedWeights and all that they lend to are closed");
        }
    }

    /** Checks that no byte of {@code tensor}, which is written to, lies in {@code other}. */
    public static void apart(String argument, Tensor tensor, String otherArgument, Tensor other) {
        if (overlaps(tensor, other)) {
            throw new IllegalArgumentException(argument + ": expected memory of its own, got some of " + otherArgument
                    + "'s; it is written to while that is read or written");
        }
    }

    /** The same of two others. */
    public static void apart(
            String argument, Tensor tensor, String firstArgument, Tensor first, String secondArgument, Tensor second) {
        apart(argument, tensor, firstArgument, first);
        apart(argument, tensor, secondArgument, second);
    }

    /** The same of three others. */
    public static void apart(
            String argument,
            Tensor tensor,
            String firstArgument,
            Tensor first,
            String secondArgument,
            Tensor second,
            String thirdArgument,
            Tensor third) {
        apart(argument, tensor, firstArgument, first, secondArgument, second);
        apart(argument, tensor, thirdArgument, third);
    }

    /** Checks that {@code tensor}, which is written to, may be, and that no byte of it lies in {@code other}. */
    public static void written(String argument, Tensor tensor, String otherArgument, Tensor other) {
        writable(argument, tensor);
        apart(argument, tensor, otherArgument, other);
    }

    /** The same of two others. */
    public static void written(
            String argument, Tensor tensor, String firstArgument, Tensor first, String secondArgument, Tensor second) {
        writable(argument, tensor);
        apart(argument, tensor, firstArgument, first, secondArgument, second);
    }

    /** Checks that {@code tensor}, which is written to, either begins where {@code other} does or shares no byte with it. */
    public static void apartOrSame(String argument, Tensor tensor, String otherArgument, Tensor other) {
        if (Inside.address(tensor) != Inside.address(other) || tensor.byteSize() > other.byteSize()) {
            apart(argument, tensor, otherArgument, other);
        }
    }

    /** Returns whether two tensors, which were found usable before, share a byte. */
    public static boolean overlaps(Tensor tensor, Tensor other) {
        long begin = Inside.address(tensor);
        long otherBegin = Inside.address(other);
        return tensor.count() != 0
                && other.count() != 0
                && begin < otherBegin + other.byteSize()
                && otherBegin < begin + tensor.byteSize();
    }

    /** Checks that a tensor begins where kernels that load 16 bytes at a time can read it. */
    public static void aligned(String argument, Tensor tensor) {
        if (Inside.address(tensor) % VECTOR_BYTES != 0) {
            throw new IllegalArgumentException(
                    argument + ": expected memory that begins at a multiple of " + VECTOR_BYTES
                            + " bytes, as every tensor of a scope does, got a view that does not; copy it into a"
                            + " tensor");
        }
    }

    /** Checks that {@code probability}, of dropping something, is at least 0 and below 1. */
    public static void probability(String argument, float probability) {
        if (!(probability >= 0 && probability < 1)) {
            throw new IllegalArgumentException(
                    argument + ": expected a number of at least 0 and below 1, got " + probability);
        }
    }

    /** Returns the device address of {@code tensor}; C's null, 0, when there is none. */
    public static long addressOrNull(@Nullable Tensor tensor) {
        return tensor == null ? 0 : tensor.address();
    }

    /**
     * Returns {@code value}.
     *
     * @throws IllegalArgumentException when it is below 1
     */
    public static long atLeastOne(String argument, long value) {
        if (value < 1) {
            throw new IllegalArgumentException(argument + ": expected at least 1, got " + value);
        }
        return value;
    }

    /** Checks that {@code value} is there. */
    public static <V> V given(String argument, @Nullable V value) {
        if (value == null) {
            throw new NullPointerException(argument + ": expected a value, got null");
        }
        return value;
    }

    /** The same of two values. */
    public static void given(String argument, @Nullable Object value, String second, @Nullable Object secondValue) {
        given(argument, value);
        given(second, secondValue);
    }

    /** The same of three values. */
    public static void given(
            String argument,
            @Nullable Object value,
            String second,
            @Nullable Object secondValue,
            String third,
            @Nullable Object thirdValue) {
        given(argument, value, second, secondValue);
        given(third, thirdValue);
    }

    /** The same of four values. */
    public static void given(
            String argument,
            @Nullable Object value,
            String second,
            @Nullable Object secondValue,
            String third,
            @Nullable Object thirdValue,
            String fourth,
            @Nullable Object fourthValue) {
        given(argument, value, second, secondValue);
        given(third, thirdValue, fourth, fourthValue);
    }

    /** Returns a copy of {@code values} after a check that each is there. */
    public static <V> List<V> givenAll(String argument, @Nullable List<? extends @Nullable V> values) {
        int index = 0;
        for (V value : given(argument, values)) {
            if (value == null) {
                throw new NullPointerException(argument + ": expected values, got null at " + index);
            }
            index++;
        }
        return List.copyOf(values);
    }

    /** Returns a copy of {@code values} after a check that each is there. */
    public static <V> Set<V> givenAll(String argument, @Nullable Set<? extends @Nullable V> values) {
        // A set that holds no null may throw when it is asked for one.
        for (V value : given(argument, values)) {
            if (value == null) {
                throw new NullPointerException(argument + ": expected values, got a null among them");
            }
        }
        return Set.copyOf(values);
    }

    /** Checks that each of {@code values} is there, and returns them. */
    public static <V> V[] givenAll(String argument, V @Nullable [] values) {
        V[] present = given(argument, values);
        for (int i = 0; i < present.length; i++) {
            if (Objects.isNull(present[i])) {
                throw new NullPointerException(argument + ": expected values, got null at " + i);
            }
        }
        return present;
    }

    /**
     * Checks that Transformer Engine has the type of a tensor's elements.
     *
     * @throws IllegalArgumentException when it does not
     */
    public static void withCode(String argument, Tensor tensor) {
        if (!tensor.dtype().hasCode()) {
            throw withoutCode(argument, tensor);
        }
    }

    /** The same of one of many pairs, whose name is made for the error alone. */
    public static void withCode(int pair, String argument, Tensor tensor) {
        if (!tensor.dtype().hasCode()) {
            throw withoutCode("pair " + pair + ", " + argument, tensor);
        }
    }

    private static IllegalArgumentException withoutCode(String argument, Tensor tensor) {
        return new IllegalArgumentException(argument + ": expected elements of a type that Transformer Engine has, got "
                + describe(tensor) + "; only copies and collectives take " + tensor.dtype());
    }

    /** Returns type and shape for a message. */
    public static String describe(Tensor tensor) {
        return tensor.dtype() + tensor.shape().toString();
    }
}
