package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.ops.BlockDequantization;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.Quantizer;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.Cast;
import dev.chagres.te.TensorScale;
import dev.chagres.te.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * The copies of [T, C] in eight bits that products read: rowwise, and columnwise, the transpose. In columnwise data T is rounded up to a
 * multiple of 16, since a product sums over it; with block scaling in rowwise data, too, since these products store eight rows at once. The
 * padding is 0.
 *
 * <p>Of sequence-parallel ranks, each has a part of the tokens, and products read all of them. If a tensor has one scale, each rank casts its
 * own tokens with the scale of all ranks, the bytes are gathered, and the transpose is made from the gathered bytes.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code gather_along_first_dim}.
 */
final class QuantizedCopies {
    /** Eight-bit products sum over multiples of this. */
    static final long STEP = QuantizerSite.STEP;

    private final QuantizerSite site;
    /** Those that have parts of the tokens, or none. */
    private final TensorParallel ranks;

    private final Target.Plain plain = new Target.Plain();
    private final Target.PlainAndAmax plainAndAmax = new Target.PlainAndAmax();
    private final Target.Quantized quantized = new Target.Quantized();
    private @Nullable QuantizedTensor rowwise;
    private @Nullable QuantizedTensor columnwise;

    /** {@code ranks}: those of whose tokens products read all; {@link TensorParallel#none} where a rank has all tokens. */
    QuantizedCopies(QuantizerSite site, TensorParallel ranks) {
        this.site = site;
        this.ranks = ranks;
    }

    /** Has {@code x} written alone. */
    Target plain(Tensor x) {
        return plain.set(x, null);
    }

    /** Has {@code x} written, and its amax if the producer finds that and the scale follows from it. */
    Target plain(Tensor x, boolean findsAmax, @Nullable Quantizers quantizers, Pass pass) {
        Quantizer quantizer = quantizers == null ? null : quantizers.at(site);
        if (quantizer == null || !findsAmax || !quantizer.scalesByAmax()) {
            return plain(x);
        }
        Scope temporary = pass.temporary();
        Tensor amax = temporary.tensor(DType.FLOAT32, 1);
        amax.zero(pass.stream());
        return plainAndAmax.set(
                x, quantizer.empty(temporary, x.size(0), x.size(1)).amax(amax));
    }

    /** Has copies of [rows, columns] written, T rounded up where necessary, if their scale is known; else returns null. */
    @Nullable
    Target quantized(
            long rows,
            long columns,
            @Nullable Quantizers quantizers,
            Scope rowsIn,
            @Nullable Scope columnsIn,
            Pass pass) {
        if (quantizers == null || !quantizers.at(site).knowsScale()) {
            return null;
        }
        QuantizedTensor both = take(rows, columns, quantizers, rowsIn, columnsIn);
        quantizers.at(site).setScale(both, pass.recording());
        return quantized.set(null, both);
    }

    /** Returns whether the next cast is measured. */
    boolean measures(@Nullable Quantizers quantizers, Pass pass) {
        return quantizers != null && quantizers.measures(site, pass.recording());
    }

    /** Enqueues the measurement of the cast by the kernel that computed {@code x}, if casts are measured. */
    void measure(@Nullable Tensor x, Quantizers quantizers, Pass pass) {
        if (x != null && measures(quantizers, pass)) {
            quantizers.at(site).measure(x, rowwise(), pass.stream());
        }
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
     * Enqueues the casts, and the sums of the columns of {@code x}.
     *
     * @param amax the largest magnitude of {@code x}, if the kernel that computed it found that; null otherwise
     * @param columnSums null for none, as always with block scaling
     * @param rowsIn holds the rowwise copy
     * @param columnsIn holds the columnwise copy; null where none is wanted
     */
    void cast(
            Tensor x,
            @Nullable Tensor amax,
            @Nullable Tensor columnSums,
            Quantizers quantizers,
            Scope rowsIn,
            @Nullable Scope columnsIn,
            Pass pass) {
        QuantizedTensor both = take(x.size(0), x.size(1), quantizers, rowsIn, columnsIn);
        if (amax != null) {
            both.amax(amax);
        }
        Tensor source = both.rows() == x.size(0) ? x : filledUp(x, both.rows(), pass);
        Quantizer quantizer = quantizers.at(site);
        Scope temporary = pass.temporary();
        if (columnSums == null) {
            quantizer.cast(source, both, pass.recording(), temporary, pass.stream());
        } else {
            quantizer.castAndSumColumns(source, both, columnSums, pass.recording(), temporary, pass.stream());
        }
    }

    /** Allocates the copies of [rows, columns], and returns them for a kernel to fill, with T rounded up where necessary. */
    private QuantizedTensor take(
            long rows, long columns, Quantizers quantizers, Scope rowsIn, @Nullable Scope columnsIn) {
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
        rowwise = both;
        columnwise = both;
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

    /** Returns the tensor whose columnwise copy is the transpose, T rounded up. */
    QuantizedTensor columnwise() {
        return Checks.given("columnwise", columnwise);
    }

    /** Returns whether ranks have parts of the tokens. */
    boolean isGathered() {
        return ranks.isSequenceParallel();
    }

    /** Returns whether a tensor has one scale, so that {@link #castOwn} and {@link #gather} make its copies. */
    boolean hasOneScale(Quantizers quantizers) {
        return quantizers.at(site).scaling() == Scaling.TENSOR;
    }

    /** Returns whether blocks lie within a row, so that {@link #gatherBlockRows} and {@link #blockColumns} make its copies. */
    boolean hasScalesOfRows(Quantizers quantizers) {
        return quantizers.at(site).scaling() == Scaling.BLOCK_1D;
    }

    /**
     * Enqueues the cast of this rank's tokens. A scale that is computed from the amax uses that of all ranks' tokens.
     *
     * @param x [T / N, C]
     * @param amax the largest magnitude of {@code x}, if the kernel that computed it found that, reduced here; null otherwise
     * @return [T / N, C] in {@code memory}, rowwise alone
     */
    QuantizedTensor castOwn(Tensor x, @Nullable Tensor amax, Quantizers quantizers, Scope memory, Pass pass) {
        QuantizedTensor own = take(x.size(0), x.size(1), quantizers, memory, null);
        Quantizer quantizer = quantizers.at(site);
        Stream stream = pass.stream();
        if (quantizer.scalesByAmax()) {
            if (amax == null) {
                quantizer.findAmax(x, own, pass.temporary(), stream);
            } else {
                own.amax(amax);
            }
            ranks.max(Checks.given("amax", own.amax()), stream);
        }
        quantizer.cast(x, own, pass.recording(), pass.temporary(), stream);
        return own;
    }

    /**
     * Enqueues the gather of the copies of all tokens from the ranks' casts.
     *
     * @param own [T / N, C], rowwise
     * @param columnsIn holds the transpose; null where none is wanted
     */
    void gather(QuantizedTensor own, Quantizers quantizers, @Nullable Scope columnsIn, Pass pass) {
        Quantizer quantizer = quantizers.at(site);
        Scope temporary = pass.temporary();
        long rows = own.rows() * ranks.size();
        Tensor part = Checks.given("rowwise", own.rowwise());
        Tensor scaleInverse = Checks.given("scaleInverse", own.rowwiseScaleInverse());
        Tensor filled = columnsIn == null
                ? temporary.tensor(part.dtype(), rows, own.columns())
                : zeroFilled(temporary, part.dtype(), rows, own.columns(), pass.stream());
        Tensor all = first(temporary, filled, rows);
        ranks.gather(part, all, pass.stream());
        rowwise = quantizer.empty(temporary, rows, own.columns()).rowwise(all, scaleInverse);
        columnwise = null;
        if (columnsIn == null) {
            return;
        }
        QuantizedTensor both = quantizer
                .empty(temporary, filled.size(0), own.columns())
                .rowwise(filled, scaleInverse)
                .allocateColumnwise(columnsIn);
        Transpose.transpose(filled, Checks.given("columnwise", both.columnwise()), pass.stream());
        columnwise = both;
    }

    /**
     * Enqueues the gather of the rowwise data of all tokens with block scales.
     *
     * @param own [T / N, C], rowwise, T / N a multiple of {@link #STEP}
     */
    void gatherBlockRows(QuantizedTensor own, Quantizers quantizers, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor all = quantizers
                .at(site)
                .empty(temporary, own.rows() * ranks.size(), own.columns())
                .allocateRowwise(temporary);
        ranks.gather(Checks.given("rowwise", own.rowwise()), Checks.given("rowwise", all.rowwise()), pass.stream());
        gatherSideBySide(
                Checks.given("scaleInverse", own.rowwiseScaleInverse()),
                Checks.given("scaleInverse", all.rowwiseScaleInverse()),
                pass);
        rowwise = all;
        columnwise = null;
    }

    /**
     * Enqueues the gather of the columnwise data of all tokens with block scales, and returns it.
     *
     * @param own [T / N, C], columnwise, T / N a multiple of a block
     */
    QuantizedTensor blockColumns(QuantizedTensor own, Quantizers quantizers, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor all = quantizers
                .at(site)
                .empty(temporary, own.rows() * ranks.size(), own.columns())
                .allocateColumnwise(temporary);
        gatherSideBySide(
                Checks.given("columnwise", own.columnwise()), Checks.given("columnwise", all.columnwise()), pass);
        ranks.gather(
                Checks.given("scaleInverse", own.columnwiseScaleInverse()),
                Checks.given("scaleInverse", all.columnwiseScaleInverse()),
                pass.stream());
        return all;
    }

    /** Enqueues {@code whole[i, r P + j] = part of rank r [i, j]}, for parts of P columns. */
    private void gatherSideBySide(Tensor part, Tensor whole, Pass pass) {
        Scope temporary = pass.temporary();
        long rows = part.size(0);
        long columns = part.size(1);
        Tensor parts = temporary.tensor(part.dtype(), ranks.size(), rows, columns);
        ranks.gather(part, parts, pass.stream());
        Transpose.swapFirstDims(parts, temporary.view(whole, 0, rows, ranks.size(), columns), pass.stream());
    }

    /**
     * Enqueues {@code amax = max(amax, found)}, where casts would do so, after a kernel that overwrites an amax: a product of cuBLASLt that
     * casts its result, or attention of cuDNN. Without it, the last micro-batch of a step would decide the scales of the next step alone.
     *
     * @param found FLOAT32 [1], which a cast reads whose result is not read
     */
    static void raiseAmax(Tensor amax, Tensor found, Tensor scale, DType dtype, Pass pass) {
        Scope temporary = pass.temporary();
        QuantizedTensor unread = temporary
                .quantized(Scaling.TENSOR, dtype, 1, 1)
                .allocateRowwise(temporary)
                .scale(scale)
                .amax(amax);
        Cast.quantize(temporary.view(found, 0, 1, 1), unread, pass.stream());
    }

    /** If the pass records: raises the amax of a place to that which a kernel has written where none is recorded. */
    static void raiseAmax(Quantizer quantizer, Pass pass) {
        if (pass.recording() == AmaxRecording.ON) {
            TensorScale recorded = quantizer.tensorScale(AmaxRecording.ON);
            Tensor found = quantizer.tensorScale(AmaxRecording.OFF).amax();
            raiseAmax(recorded.amax(), found, recorded.scale(), quantizer.dtype(), pass);
        }
    }
}
