package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.QuantizedWeight;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.recipe.QuantizedWeights.WeightCopies;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * A weight that exists only in eight bits. Its transpose is made when backward first needs it, and kept.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code Float8Tensor} and {@code Float8BlockwiseQTensor}, which make the transpose so, too.
 */
final class Fp8PrimaryWeight implements WeightCopies {
    private final Quantizer quantizer;
    private final Parameter weight;
    private final Scope scope;
    private final QuantizedTensor copies;

    /** Allocates the scales of {@code matrix}, which a cast fills. */
    Fp8PrimaryWeight(Quantizer quantizer, Tensor matrix, Scope scope) {
        this.quantizer = quantizer;
        this.scope = scope;
        weight = quantizer.site().weight();
        long rows = matrix.size(0);
        long columns = matrix.size(1);
        Tensor inverse = scope.tensor(DType.FLOAT32, quantizer.scaling().scaleInverseShape(rows, columns));
        copies = quantizer.empty(scope, rows, columns).rowwise(matrix, inverse);
    }

    QuantizerSite site() {
        return quantizer.site();
    }

    /** Sets the parameter's memory. */
    void settle() {
        weight.hold(new QuantizedWeight(copies, weight.owner().dtype(), this::cast));
    }

    private void cast(Tensor x) {
        quantizer.ensureOpen();
        Checks.on(scope.stream(), "x", x);
        if (x.rank() != 2
                || x.size(0) != copies.rows()
                || x.size(1) != copies.columns()
                || !x.dtype().isFloat()) {
            throw new IllegalArgumentException("x: expected FLOAT32, BFLOAT16 or FLOAT16[" + copies.rows() + ", "
                    + copies.columns() + "] for " + weight.name() + ", got " + Checks.describe(x));
        }
        try (Scope room = scope.device().openScope(scope.stream())) {
            cast(x, room);
        }
    }

    /** Enqueues the cast. {@code room} is for temporary tensors. */
    void cast(Tensor x, Scope room) {
        // Scale and amax are only for the cast: products do not read them.
        QuantizedTensor target = quantizer.empty(room, copies.rows(), copies.columns());
        target.rowwise(part(copies.rowwise()), part(copies.rowwiseScaleInverse()));
        Tensor transpose = copies.columnwise();
        if (transpose != null) {
            target.columnwise(transpose, part(copies.columnwiseScaleInverse()));
        }
        quantizer.enqueueCast(x, target, null, AmaxRecording.OFF, room, scope.stream());
    }

    @Override
    public QuantizedTensor get(Product product, AmaxRecording recording, Scope temporary, Stream stream) {
        if (product != Product.FORWARD && copies.columnwise() == null) {
            if (Inside.capture(stream) != null) {
                throw new CaptureException(
                        weight.name() + ": expected a backward call before the capture, for the first"
                                + " one makes the transpose that all read; run the same work once before the capture");
            }
            Tensor inverse = part(copies.rowwiseScaleInverse());
            Tensor transpose = scope.tensor(copies.dtype(), copies.columns(), copies.rows());
            Tensor inverses = copies.scaling() == Scaling.TENSOR ? inverse : transposed(inverse);
            Transpose.transpose(part(copies.rowwise()), transpose, scope.stream());
            copies.columnwise(transpose, inverses);
        }
        return copies;
    }

    /** Transposes block scales: each block keeps its scale. Waits, once. */
    private Tensor transposed(Tensor inverse) {
        Tensor made = scope.tensor(DType.FLOAT32, Scaling.BLOCK_2D.scaleInverseShape(copies.columns(), copies.rows()));
        float[] from = inverse.toFloats(scope.stream());
        float[] to = new float[Math.toIntExact(made.count())];
        int rows = Math.toIntExact(Math.min(inverse.size(0), made.size(1)));
        int columns = Math.toIntExact(Math.min(inverse.size(1), made.size(0)));
        for (int row = 0; row < rows; row++) {
            for (int column = 0; column < columns; column++) {
                to[column * (int) made.size(1) + row] = from[row * (int) inverse.size(1) + column];
            }
        }
        made.set(scope.stream(), to);
        return made;
    }

    private static Tensor part(@Nullable Tensor present) {
        return Checks.given("copy", present);
    }

    @Override
    public void forget() {
        // There is nothing to cast again.
    }

    @Override
    public boolean hasSource() {
        return false;
    }
}
