package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.ops.DropPath;
import dev.chagres.ops.Elementwise;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.ProductPlan;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.ops.TokenPositions;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.Output;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.TensorLists;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The step of one matrix by {@link Muon}.
 *
 * <p>The iterations keep {@code X = s Y} with a number s of the host: then {@code X' = a X + (b A + c A^2) X} is {@code Y' = Y + f2 (A + f1 A^2) Y}
 * with {@code A = Y Y^T}, {@code f1 = c s^2 / b}, {@code f2 = b s^2 / a} and {@code s' = a s}: three products and two sums.
 *
 * <p>Threading: the device's thread.
 */
final class MatrixUpdate {
    private static final double A = 3.4445;
    private static final double B = -4.775;
    private static final double C = 2.0315;
    /** Added to the square of a norm, under the root. */
    private static final float EPSILON = 1e-7f;

    /** Memory of the largest matrix, which all use one after another, and numbers that are the same for all. */
    static final class Scratch {
        private final Scope scope;
        private final Tensor direction;
        private final Tensor product;
        private final Tensor square;
        private final Tensor powers;
        private final Tensor partials;
        private final Tensor norm;
        private final Tensor notFinite;
        private final Tensor epsilon;
        private final Tensor zero;
        private final Tensor one;
        private final Tensor later;
        /** The share of the gradient in a direction, where that of the mean is 1. */
        private final Tensor share;

        private final List<Tensor> ofSquare = new ArrayList<>();
        private final List<Tensor> ofProduct = new ArrayList<>();
        /** X = scale Y after the last iteration. */
        private final double scale;

        Scratch(Muon.Config config, List<MatrixPart> parts, Scope scope) {
            this.scope = scope;
            long largest = 1;
            long side = 1;
            for (MatrixPart part : parts) {
                largest = Math.max(largest, part.matrix().shape().count());
                side = Math.max(
                        side,
                        Math.min(
                                part.matrix().shape().size(0),
                                part.matrix().shape().size(1)));
            }
            direction = zeros(largest);
            product = zeros(largest);
            square = zeros(side * side);
            powers = zeros(side * side);
            partials = zeros(MultiTensor.NORM_PARTIALS);
            norm = zeros(1);
            notFinite = scope.tensor(DType.INT32, 1);
            notFinite.zero(scope.stream());
            later = scope.tensor(DType.INT32, 1);
            later.set(
                    scope.stream(), 2); // So that no step is the first one, which would take the gradient as its mean.
            epsilon = number(EPSILON);
            zero = number(0);
            one = number(1);
            share = number((1 - config.momentum()) / config.momentum());
            double s = 1;
            for (int i = 0; i < config.iterations(); i++) {
                ofSquare.add(number((float) (C * s * s / B)));
                ofProduct.add(number((float) (B * s * s / A)));
                s *= A;
            }
            scale = s;
        }

        private Tensor zeros(long count) {
            Tensor tensor = scope.tensor(DType.FLOAT32, count);
            tensor.zero(scope.stream());
            return tensor;
        }

        private Tensor number(float value) {
            Tensor tensor = scope.tensor(DType.FLOAT32, 1);
            tensor.set(scope.stream(), value);
            return tensor;
        }
    }

    /** A vector as rows of equal length, and the rest. */
    private record Rows(@Nullable Tensor rows, @Nullable Tensor rest) {
        private static final long COLUMNS = 512;

        static Rows of(Tensor vector, Scope scope) {
            long rows = vector.count() / COLUMNS;
            long rest = vector.count() % COLUMNS;
            return new Rows(
                    rows == 0 ? null : scope.view(vector, 0, rows, COLUMNS),
                    rest == 0 ? null : scope.view(vector, rows * COLUMNS, 1, rest));
        }
    }

    private final Muon.Config config;
    private final Scratch scratch;
    private final Parameters parameters;
    private final Stream stream;
    private final boolean isSharded;
    private final boolean isTall;
    private final Tensor direction;
    private final Tensor product;
    private final Tensor square;
    private final Tensor powers;
    private final Rows rows;
    private final TensorLists lists;
    private final TokenPositions tokens = new TokenPositions();
    /** s after the last iteration, times the adjustment: what the last Y is multiplied by. */
    private final Tensor finalScale;

    private final OptimizerStep moving;
    private final OptimizerStep applying = OptimizerStep.of(Method.SGD, 0, 0);
    /** Null where this rank updates no element, as the next ones. */
    private final @Nullable StepRanges mean;

    private final @Nullable StepRanges weights;
    private final @Nullable Rows gradientPart;
    private final @Nullable Rows meanPart;
    private final @Nullable Rows directionPart;

    MatrixUpdate(
            Muon.Config config,
            MatrixPart part,
            @Nullable UpdateRange range,
            Scratch scratch,
            Parameters parameters,
            OptimizerState state) {
        this.config = config;
        this.scratch = scratch;
        this.parameters = parameters;
        Scope scope = state.scope();
        stream = scope.stream();
        isSharded = parameters.access().shard() != null;
        long height = part.matrix().shape().size(0);
        long width = part.matrix().shape().size(1);
        isTall = height > width;
        long side = Math.min(height, width);
        direction = scope.view(scratch.direction, 0, height, width);
        product = scope.view(scratch.product, 0, height, width);
        square = scope.view(scratch.square, 0, side, side);
        powers = scope.view(scratch.powers, 0, side, side);
        Tensor vector = scope.view(scratch.direction, 0, height * width);
        rows = Rows.of(vector, scope);
        lists = TensorLists.of(new Tensor[] {vector, scratch.epsilon});
        parameters.adopt(lists);
        moving = OptimizerStep.of(Method.SGD, config.momentum(), config.momentum());
        double adjusted = config.adjustment() == Muon.Adjustment.ORIGINAL
                ? Math.sqrt(Math.max(1, height / (double) width))
                : 0.2 * Math.sqrt(Math.max(height, width));
        finalScale = scratch.number((float) (scratch.scale * adjusted));
        if (range == null) {
            mean = null;
            weights = null;
            gradientPart = null;
            meanPart = null;
            directionPart = null;
            return;
        }
        Tensor own = scope.view(scratch.direction, part.first(), part.count());
        Tensor unused = scope.view(scratch.product, part.first(), part.count());
        Tensor gradient = scope.view(parameters.gradients(), range.gradientOffset(), range.count());
        Tensor moved = scope.view(state.vector(0), range.gradientOffset(), range.count());
        mean = StepRanges.of(
                List.of(new StepRange(gradient, own, null, StepState.of(moved), null, scratch.zero, null, 0)), scope);
        weights = StepRanges.of(
                List.of(new StepRange(
                        own,
                        scope.view(range.weights(), range.weightOffset(), range.count()),
                        state.masters().of(range),
                        StepState.of(unused),
                        null,
                        state.numbers().rate(range.group()),
                        null,
                        range.weightDecay())),
                scope);
        gradientPart = Rows.of(gradient, scope);
        meanPart = Rows.of(moved, scope);
        directionPart = Rows.of(own, scope);
    }

    /** Enqueues the step. */
    void run(Tensor gradientScale, Tensor skip) {
        if (isSharded) {
            direction.zero(stream);
        }
        if (mean != null && directionPart != null && meanPart != null && gradientPart != null) {
            moving.step(mean, scratch.later, gradientScale, skip, stream);
            if (config.kind() == SGD.Momentum.NESTEROV) {
                scaled(gradientPart, null, directionPart, gradientScale);
                scaled(directionPart, meanPart, directionPart, scratch.share);
            } else {
                scaled(meanPart, null, directionPart, scratch.one);
            }
        }
        if (isSharded) {
            parameters.access().sumOfShards(direction);
        }
        orthogonalize();
        if (weights != null) {
            applying.step(weights, scratch.later, finalScale, skip, stream);
        }
    }

    /** Enqueues {@code y = factor x}, plus {@code added}. */
    private void scaled(Rows x, @Nullable Rows added, Rows y, Tensor factor) {
        scaled(x.rows, added == null ? null : added.rows, y.rows, factor);
        scaled(x.rest, added == null ? null : added.rest, y.rest, factor);
    }

    private void scaled(@Nullable Tensor x, @Nullable Tensor added, @Nullable Tensor y, Tensor factor) {
        if (x != null && y != null) {
            tokens.padded(QkvFormat.BSHD, x.size(0));
            DropPath.scaleSequencesAdd(x, added, y, factor, tokens, stream);
        }
    }

    private void orthogonalize() {
        MultiTensor.l2norm(scratch.notFinite, lists, scratch.partials, scratch.norm, stream);
        Elementwise.reciprocal(scratch.norm, scratch.norm, stream);
        scaled(rows, null, rows, scratch.norm);
        for (int i = 0; i < scratch.ofSquare.size(); i++) {
            product(
                    direction,
                    direction,
                    square,
                    isTall ? Transpose.YES : Transpose.NO,
                    isTall ? Transpose.NO : Transpose.YES);
            product(square, square, powers, Transpose.NO, Transpose.NO);
            scaled(powers, square, powers, scratch.ofSquare.get(i));
            product(isTall ? direction : powers, isTall ? powers : direction, product, Transpose.NO, Transpose.NO);
            scaled(product, direction, direction, scratch.ofProduct.get(i));
        }
    }

    private void product(Tensor a, Tensor b, Tensor d, Transpose ofA, Transpose ofB) {
        MatrixProduct.of(ofA, ofB, ProductPlan.FIRST).product(a, b, d, Output.OVERWRITE, stream);
    }
}
