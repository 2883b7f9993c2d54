package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.ops.AdafactorMatrices;
import dev.chagres.ops.AdafactorMatrix;
import dev.chagres.ops.AdafactorRange.Place;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The running means of squares of rows and columns that {@link Adafactor} has of every trained parameter of the whole model, FLOAT32, on every
 * rank: they are small, and each rank needs those of whole matrices.
 *
 * <p>A parameter of several dimensions is a matrix of the first one and the rest, any other a matrix of one row.
 *
 * <p>Threading: the device's thread.
 */
final class FactoredMoments {
    private static final String ROWS = ".exp_avg_sq_row";
    private static final String COLUMNS = ".exp_avg_sq_col";

    private final Scope scope;
    /** Sums of gradients and weights, which ranks add up. */
    final Tensor sums;
    /** Sums of updates, likewise. */
    final Tensor updateSums;

    /** By name, for ranks of a pipeline have other objects of a parameter than the model. */
    private final Map<String, AdafactorMatrix> matrices = new LinkedHashMap<>();

    /** All matrices; null of a model without trained parameters. */
    final @Nullable AdafactorMatrices table;
    /** Of a rank's part of split parameters: which rows or columns it has. */
    private final IdentityHashMap<Parameter, Tensor> maps = new IdentityHashMap<>();

    /** Rows and columns of a parameter that no ranks split. */
    private record Size(long rows, long columns) {
        static Size of(Shape shape) {
            long first = shape.rank() < 2 ? 1 : shape.size(0);
            return new Size(first, first == 0 ? 0 : shape.count() / first);
        }

        boolean isVector() {
            return rows == 1;
        }
    }

    FactoredMoments(Parameters parameters, OptimizerState state) {
        scope = state.scope;
        List<Parameter> all = parameters.access().ofModel().stream()
                .filter(one -> !one.isFrozen() && one.wholeShape().count() > 0)
                .toList();
        List<Size> sizes = all.stream().map(one -> Size.of(one.wholeShape())).toList();
        long rows = sizes.stream().mapToLong(Size::rows).sum();
        long columns = sizes.stream().mapToLong(Size::columns).sum();
        sums = OptimizerState.zeros(2 * rows + columns, scope);
        updateSums = OptimizerState.zeros(rows, scope);
        Tensor means = OptimizerState.zeros(rows + columns, scope);
        Tensor numbers = OptimizerState.zeros(3L * all.size(), scope);
        long row = 0;
        long column = 0;
        for (int i = 0; i < all.size(); i++) {
            Size size = sizes.get(i);
            long place = 2 * row + column;
            AdafactorMatrix matrix = new AdafactorMatrix(
                    scope.view(sums, place, 2, size.rows()),
                    scope.view(sums, place + 2 * size.rows(), size.columns()),
                    scope.view(updateSums, row, size.rows()),
                    size.isVector() ? null : scope.view(means, row + column, size.rows()),
                    scope.view(means, row + column + size.rows(), size.columns()),
                    scope.view(numbers, 3L * i, 3),
                    state.numbers.rate(UpdateRange.groupOf(all.get(i), state.numbers.groups)));
            matrices.put(all.get(i).name(), matrix);
            row += size.rows();
            column += size.columns();
        }
        table = all.isEmpty() ? null : AdafactorMatrices.of(List.copyOf(matrices.values()), scope);
    }

    /** Returns the whole matrix of a parameter of this rank. */
    AdafactorMatrix of(Parameter parameter) {
        AdafactorMatrix matrix = matrices.get(parameter.name());
        if (matrix == null) {
            throw new IllegalStateException("parameters: expected " + parameter.name() + " among those of the model");
        }
        return matrix;
    }

    /** Returns which elements of its matrix this rank's part has. */
    Place place(MatrixPart part) {
        Parameter parameter = part.matrix();
        Size own = Size.of(parameter.shape());
        ParameterSplit split = parameter.split();
        Size whole = Size.of(parameter.wholeShape());
        if (split == null) {
            return new Place(part.first(), whole.columns(), null, null);
        }
        boolean ofRows = split.dimension() == 0 && parameter.shape().rank() > 1;
        Tensor map = maps.computeIfAbsent(
                parameter,
                _ -> map(split, ofRows ? own.rows() : own.columns(), ofRows ? own.columns() : 1, whole, ofRows));
        return new Place(part.first(), own.columns(), ofRows ? map : null, ofRows ? null : map);
    }

    private Tensor map(ParameterSplit split, long count, long step, Size whole, boolean ofRows) {
        int[] places = new int[Math.toIntExact(count)];
        for (int i = 0; i < places.length; i++) {
            long element = split.element(i * step);
            places[i] = Math.toIntExact(ofRows ? element / whole.columns() : element % whole.columns());
        }
        Tensor map = scope.tensor(DType.INT32, count);
        map.set(scope.stream(), places);
        return map;
    }

    /** Adds what is saved. */
    void addTo(State.Builder state) {
        for (Map.Entry<String, AdafactorMatrix> entry : matrices.entrySet()) {
            String name = entry.getKey();
            Tensor row = entry.getValue().row();
            Tensor column = entry.getValue().column();
            if (row == null) {
                state.tensor(name + StateVector.SQUARE, column, State.Values.NOT_NEGATIVE);
            } else {
                state.tensor(name + ROWS, row, State.Values.NOT_NEGATIVE);
                state.tensor(name + COLUMNS, column, State.Values.NOT_NEGATIVE);
            }
        }
    }
}
