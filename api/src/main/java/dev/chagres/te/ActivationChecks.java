package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of {@link ActivationFunction}.
 *
 * <p>Threading: the device's thread.
 */
final class ActivationChecks {
    private static final String NO_BLOCKS = "TE's activations compute no block scales";

    private ActivationChecks() {}

    static void forward(ActivationFunction activation, Tensor x, QuantizedTensor y, Stream stream) {
        input(activation, x, stream);
        Checks.matrix(stream, "x", x);
        QuantizedChecks.output(stream, "y", y, x.size(0), activation.isGated() ? x.size(1) / 2 : x.size(1));
        QuantizedChecks.requireTensorScaling("y", y, NO_BLOCKS);
        QuantizedChecks.apart("y", y, "x", x);
        QuantizedChecks.aligned("x", x, "y", y);
        if (y.columnwise() != null && !activation.isGated()) {
            QuantizedChecks.divisible("x", x, 8);
        }
    }

    static void forward(ActivationFunction activation, Tensor x, Tensor y, Stream stream) {
        input(activation, x, stream);
        half(activation, "y", y, x, stream);
        written(activation, "y", y, "x", x);
    }

    static void backward(ActivationFunction activation, Tensor dy, Tensor x, QuantizedTensor dx, Stream stream) {
        input(activation, x, stream);
        half(activation, "dy", dy, x, stream);
        Checks.matrix(stream, "x", x);
        QuantizedChecks.output(stream, "dx", dx, x.size(0), x.size(1));
        QuantizedChecks.requireTensorScaling("dx", dx, NO_BLOCKS);
        QuantizedChecks.apart("dx", dx, "dy", dy);
        QuantizedChecks.apart("dx", dx, "x", x);
        QuantizedChecks.aligned("x", x, "dx", dx);
        if (dx.columnwise() != null) {
            Checks.aligned("dy", dy);
            QuantizedChecks.divisible("x", x, 4, activation.isGated() ? 1 : 4);
        }
    }

    static void backward(ActivationFunction activation, Tensor dy, Tensor x, Tensor dx, Stream stream) {
        input(activation, x, stream);
        half(activation, "dy", dy, x, stream);
        Checks.like(stream, "dx", dx, x);
        written(activation, "dx", dx, "dy", dy);
        written(activation, "dx", dx, "x", x);
    }

    /** Checks {@code amax}, which receives the largest magnitude of the matrix {@code written}. */
    static void amax(
            Tensor amax, String writtenArgument, Tensor written, String readArgument, Tensor read, Stream stream) {
        Checks.matrix(stream, writtenArgument, written);
        Checks.vector(stream, "amax", amax, DType.FLOAT32, 1);
        Checks.written("amax", amax, writtenArgument, written, readArgument, read);
    }

    /** Checks a tensor that has the shape of y. */
    private static void half(ActivationFunction activation, String argument, Tensor tensor, Tensor x, Stream stream) {
        if (activation.isGated()) {
            Checks.matrix(stream, argument, tensor, x.dtype(), x.size(0), x.size(1) / 2);
        } else {
            Checks.like(stream, argument, tensor, x);
        }
    }

    private static void input(ActivationFunction activation, Tensor x, Stream stream) {
        Checks.floats(stream, "x", x);
        if (activation.isGated() && (x.rank() != 2 || x.size(1) % 2 != 0)) {
            String name = activation instanceof Activation one
                    ? one.name()
                    : activation.getClass().getSimpleName();
            throw new IllegalArgumentException("x: expected [T, 2F] with an even number of columns, for " + name
                    + " is " + activation.formula() + ", got " + Checks.describe(x));
        }
    }

    private static void written(
            ActivationFunction activation, String argument, Tensor tensor, String readArgument, Tensor read) {
        Checks.writable(argument, tensor);
        if (activation.isGated()) {
            Checks.apart(argument, tensor, readArgument, read);
        } else {
            Checks.apartOrSame(argument, tensor, readArgument, read);
        }
    }

    /**
     * A handle, one per device, for matrices of 16 or 32 bits whose amax is computed by the kernel that writes them.
     */
    static final class MeasuredTensor implements AutoCloseable {
        private static final DeviceState.Attachment<MeasuredTensor> ATTACHMENT =
                new DeviceState.Attachment<>(MeasuredTensor::new);

        private final BasicTensor description;
        private final MemorySegment handle;

        private MeasuredTensor(DeviceState device) {
            description = device.basicTensor();
            handle = description.create();
        }

        /** Returns the handle of {@code matrix} with {@code amax}, until the next call; its own where {@code amax} is null. */
        static MemorySegment handle(Tensor matrix, @Nullable Tensor amax, Stream stream) {
            if (amax == null) {
                return matrix.handle();
            }
            MeasuredTensor measured = Inside.state(stream).get(ATTACHMENT);
            measured.description
                    .at(matrix.address(), matrix.dtype().code())
                    .matrix(matrix.size(0), matrix.size(1))
                    .writeTo(measured.handle);
            measured.description
                    .at(amax.address(), DType.FLOAT32.code())
                    .vector(1)
                    .writeTo(measured.handle, TransformerEngine.kNVTEAmax());
            return measured.handle;
        }

        @Override
        public void close() {
            TransformerEngine.te_destroy_tensor(handle);
        }
    }
}
