package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.BlockDequantization;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Quantizer;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Cast;
import org.jspecify.annotations.Nullable;

/**
 * The copies of [T, C] in eight bits that products read: rowwise, and columnwise, the transpose. In columnwise data T is rounded up to a
 * multiple of 16, since a product sums over it; with block scaling in rowwise data, too, since these products store eight rows at once. The
 * padding is 0.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedCopies {
    /** Eight-bit products sum over multiples of this. */
    static final long STEP = QuantizerSite.STEP;

    private final QuantizerSite site;
    private @Nullable QuantizedTensor rowwise;
    private @Nullable QuantizedTensor columnwise;

    QuantizedCopies(QuantizerSite site) {
        this.site = site;
    }

    /** Enqueues {@code y = q s}: dequantizes the rowwise data to the type of y. */
    static void dequantize(QuantizedTensor q, Tensor y, Pass pass) {
        if (q.scaling() == Scaling.TENSOR) {
            Cast.dequantize(q, y, pass.stream());
        } else {
            BlockDequantization.dequantizeBlocks(q, y, pass.stream());
        }
    }

    /**
     * Enqueues the casts.
     *
     * @param rowsIn holds the rowwise copy
     * @param amax the largest magnitude of {@code x}, if the kernel that computed it found that; null otherwise
     * @param columnsIn holds the columnwise copy; null where none is wanted
     */
    void cast(
            Tensor x,
            @Nullable Tensor amax,
            Quantizers quantizers,
            Scope rowsIn,
            @Nullable Scope columnsIn,
            Pass pass) {
        QuantizedTensor both = take(x.size(0), x.size(1), quantizers, rowsIn, columnsIn);
        if (amax != null) {
            both.amax(amax);
        }
        Tensor source = both.rows() == x.size(0) ? x : filledUp(x, both.rows(), pass);
        quantizers.at(site).cast(source, both, pass.recording(), pass.temporary(), pass.stream());
    }

    /**
     * Enqueues the cast to rowwise and columnwise data, and the sums of the columns of {@code x}; not for block scaling.
     *
     * @param amax as for {@link #cast}
     */
    void castAndSumColumns(
            Tensor x, @Nullable Tensor amax, Tensor columnSums, Quantizers quantizers, Scope memory, Pass pass) {
        QuantizedTensor both = take(x.size(0), x.size(1), quantizers, memory, memory);
        if (amax != null) {
            both.amax(amax);
        }
        Tensor source = both.rows() == x.size(0) ? x : filledUp(x, both.rows(), pass);
        quantizers.at(site).castAndSumColumns(source, both, columnSums, pass.recording(), memory, pass.stream());
    }

    /** Allocates the copies of [rows, columns], and returns them for a kernel to fill, with T rounded up where necessary. */
    QuantizedTensor take(long rows, long columns, Quantizers quantizers, Scope rowsIn, @Nullable Scope columnsIn) {
        Quantizer quantizer = quantizers.at(site);
        boolean blocks = quantizer.scaling() != Scaling.TENSOR;
        QuantizedTensor both = quantizer.empty(rowsIn, columnsIn == null && !blocks ? rows : filled(rows), columns);
        // With one scale, rowwise and columnwise data share the scale inverse, which lives as long as the columnwise
        // data.
        if (columnsIn != null) {
            both.allocateColumnwise(columnsIn);
        }
        both.allocateRowwise(rowsIn);
        columnwise = columnsIn == null ? null : both;
        rowwise = blocks || both.rows() == rows
                ? both
                : quantizer
                        .empty(rowsIn, rows, columns)
                        .rowwise(
                                rowsIn.view(Checks.given("rowwise", both.rowwise()), 0, rows, columns),
                                Checks.given("scaleInverse", both.rowwiseScaleInverse()));
        return both;
    }

    /** Sets copies that a kernel has filled, T a multiple of {@link #STEP}. */
    void set(QuantizedTensor both) {
        set(both, both);
    }

    /** Sets gathered copies; columnwise data, if any, has T rounded up. */
    void set(QuantizedTensor newRowwise, @Nullable QuantizedTensor newColumnwise) {
        rowwise = newRowwise;
        columnwise = newColumnwise;
    }

    /** Returns {@code rows} rounded up to a multiple of {@link #STEP}. */
    static long filled(long rows) {
        return (rows + STEP - 1) / STEP * STEP;
    }

    /** Hands out [rows rounded up, columns], of which the rows behind {@code rows} are 0. */
    static Tensor zeroFilled(Scope memory, DType dtype, long rows, long columns, Stream stream) {
        long filled = filled(rows);
        Tensor tensor = memory.tensor(dtype, filled, columns);
        if (filled != rows) {
            memory.view(tensor, rows * columns, filled - rows, columns).zero(stream);
        }
        return tensor;
    }

    /** Returns the first rows of {@code tensor}, which is itself where it has no more. */
    static Tensor first(Scope memory, Tensor tensor, long rows) {
        return tensor.size(0) == rows ? tensor : memory.view(tensor, 0, rows, tensor.size(1));
    }

    private static Tensor filledUp(Tensor x, long filled, Pass pass) {
        Stream stream = pass.stream();
        Scope temporary = pass.temporary();
        Tensor longer = temporary.tensor(x.dtype(), filled, x.size(1));
        temporary.view(longer, 0, x.size(0), x.size(1)).copyFrom(stream, x);
        temporary.view(longer, x.count(), filled - x.size(0), x.size(1)).zero(stream);
        return longer;
    }

    /** Returns the copy [T, C], where blocks are scaled with T rounded up. */
    QuantizedTensor rowwise() {
        return Checks.given("rowwise", rowwise);
    }

    /** Returns whether the latest copies have the transpose. */
    boolean hasColumnwise() {
        return columnwise != null;
    }

    /** Returns the tensor whose columnwise copy is the transpose, T rounded up. */
    QuantizedTensor columnwise() {
        return Checks.given("columnwise", columnwise);
    }
}
