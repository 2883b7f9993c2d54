package dev.chagres.optim;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.Columns;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Parameter;
import java.util.ArrayList;
import java.util.List;

/**
 * A matrix of which tensor-parallel ranks have equal parts, for {@link Muon}: it gathers them, in an order of rows or columns that need not be
 * the matrix's own, for {@code P X} and {@code X P} have the steps of X in the order P.
 *
 * <p>Threading: the device's thread.
 */
final class SplitMatrix {
    private final TensorParallel ranks;
    private final boolean isByRows;
    private final Tensor part;
    private final Tensor gathered;
    /** Of a matrix that is split by columns: this rank's and that of each, [rows, columns of a rank]. */
    private final Tensor block;

    private final List<Tensor> blocks = new ArrayList<>();

    /**
     * Makes views.
     *
     * @param part room for this rank's part of any matrix
     * @param gathered room for all parts of any matrix
     */
    SplitMatrix(TensorParallel ranks, Parameter matrix, Tensor part, Tensor gathered, Scope scope) {
        this.ranks = ranks;
        ParameterSplit split = matrix.split();
        isByRows = split != null && split.dimension() == 0;
        long rows = matrix.shape().size(0);
        long columns = matrix.shape().size(1);
        this.part = scope.view(part, 0, rows * columns);
        block = scope.view(part, 0, rows, columns);
        this.gathered = scope.view(gathered, 0, ranks.size() * rows, columns);
        for (int rank = 0; rank < ranks.size(); rank++) {
            blocks.add(scope.view(gathered, rank * rows * columns, rows, columns));
        }
    }

    /**
     * Returns the parameter, after a check that all ranks have parts of one size.
     *
     * @throws IllegalArgumentException when they do not
     */
    static Parameter ensureEven(Parameter parameter) {
        ParameterSplit split = parameter.split();
        if (split != null && !split.isEven()) {
            throw new IllegalArgumentException(
                    "parameters: expected matrices that tensor-parallel ranks split evenly, got "
                            + parameter.name() + " " + split.whole() + " among " + split.ranks()
                            + " ranks; name it in Muon.Config.withExcluded, and AdamW updates it");
        }
        return parameter;
    }

    /** Enqueues {@code whole} of the parts of all ranks. */
    void gather(Tensor whole, Stream stream) {
        ranks.gather(part, gathered, stream);
        if (isByRows) {
            whole.copyFrom(stream, gathered);
            return;
        }
        for (int rank = 0; rank < blocks.size(); rank++) {
            Columns.copyColumns(blocks.get(rank), 0, whole, rank * block.size(1), block.size(1), stream);
        }
    }

    /** Enqueues this rank's part of {@code whole}. */
    void take(Tensor whole, Stream stream) {
        if (isByRows) {
            gathered.copyFrom(stream, whole);
            block.copyFrom(stream, blocks.get(ranks.rank()));
        } else {
            Columns.copyColumns(whole, ranks.rank() * block.size(1), block, 0, block.size(1), stream);
        }
    }
}
