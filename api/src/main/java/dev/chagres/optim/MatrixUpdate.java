package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
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
        /** Of matrices that tensor-parallel ranks split: this rank's part, and the parts of all; null without any. */
        private final @Nullable Tensor share;

        private final @Nullable Tensor gathered;
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
        /** The part of the gradient in a direction, where that of the mean is 1. */
        private final Tensor ofGradient;

        private final List<Tensor> ofSquare = new ArrayList<>();
        private final List<Tensor> ofProduct = new ArrayList<>();
        /** X = scale Y after the last iteration. */
        private final double scale;

        Scratch(Muon.Config config, List<MatrixPart> parts, Scope scope) {
            this.scope = scope;
            long largest = 1;
            long side = 1;
            long largestSplit = 0;
            long largestShare = 0;
            for (MatrixPart part : parts) {
                Shape whole = part.matrix().wholeShape();
                largest = Math.max(largest, whole.count());
                side = Math.max(side, Math.min(whole.size(0), whole.size(1)));
                if (part.matrix().split() != null) {
                    largestSplit = Math.max(largestSplit, whole.count());
                    largestShare = Math.max(largestShare, part.matrix().shape().count());
                }
            }
            direction = OptimizerState.zeros(largest, scope);
            share = largestShare == 0 ? null : OptimizerState.zeros(largestShare, scope);
            gathered = largestSplit == 0 ? null : OptimizerState.zeros(largestSplit, scope);
            product = OptimizerState.zeros(largest, scope);
            square = OptimizerState.zeros(side * side, scope);
            powers = OptimizerState.zeros(side * side, scope);
            partials = OptimizerState.zeros(MultiTensor.NORM_PARTIALS, scope);
            norm = OptimizerState.zeros(1, scope);
            notFinite = scope.tensor(DType.INT32, 1);
            notFinite.zero(scope.stream());
            later = scope.tensor(DType.INT32, 1);
            later.set(
                    scope.stream(), 2); // So that no step is the first one, which would take the gradient as its mean.
            epsilon = number(EPSILON);
            zero = number(0);
            one = number(1);
            ofGradient = number((1 - config.momentum()) / config.momentum());
            double s = 1;
            for (int i = 0; i < config.iterations(); i++) {
                ofSquare.add(number((float) (C * s * s / B)));
                ofProduct.add(number((float) (B * s * s / A)));
                s *= A;
            }
            scale = s;
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
    /** Which elements this rank updates. */
    final MatrixPart part;
    /** Null where no tensor-parallel ranks split the matrix. */
    private final @Nullable SplitMatrix split;

    private final Stream stream;
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
    /** This rank's part of the direction, where another rank may compute the whole; null where this rank updates no element, as the next ones. */
    final @Nullable Tensor own;

    private final @Nullable StepRanges mean;

    private final @Nullable StepRanges weights;
    private final @Nullable Rows gradientPart;
    private final @Nullable Rows meanPart;
    private final @Nullable Rows directionPart;

    /**
     * Makes the views.
     *
     * @param room for this rank's part of the direction, that many elements; null where this rank has the whole matrix
     */
    MatrixUpdate(
            Muon.Config config,
            MatrixPart part,
            @Nullable UpdateRange range,
            @Nullable Tensor room,
            Scratch scratch,
            Parameters parameters,
            OptimizerState state) {
        this.config = config;
        this.part = part;
        this.scratch = scratch;
        Scope scope = state.scope;
        stream = scope.stream();
        long height = part.matrix().wholeShape().size(0);
        long width = part.matrix().wholeShape().size(1);
        Tensor ofRank = scratch.share;
        Tensor ofAll = scratch.gathered;
        split = part.matrix().split() == null || ofRank == null || ofAll == null
                ? null
                : new SplitMatrix(parameters.tensorParallel(), part.matrix(), ofRank, ofAll, scope);
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
            own = null;
            mean = null;
            weights = null;
            gradientPart = null;
            meanPart = null;
            directionPart = null;
            return;
        }
        Tensor kept = room == null ? whole(0, part.matrix().shape().count()) : room;
        Tensor unused = scope.view(scratch.product, 0, part.count());
        own = kept;
        Tensor gradient = state.gradients(range);
        Tensor moved = scope.view(state.vector(0), range.gradientOffset(), range.count());
        mean = StepRanges.of(
                List.of(new StepRange(gradient, kept, null, StepState.of(moved), null, scratch.zero, null, 0)), scope);
        weights = StepRanges.of(
                List.of(new StepRange(
                        kept,
                        range.weights(scope),
                        state.masters.of(range),
                        StepState.of(unused),
                        null,
                        state.numbers.rate(range.group()),
                        null,
                        range.weightDecay())),
                scope);
        gradientPart = Rows.of(gradient, scope);
        meanPart = Rows.of(moved, scope);
        directionPart = Rows.of(kept, scope);
    }

    /** Enqueues the step of a rank that has the whole matrix. */
    void run(Tensor gradientScale, Tensor skip) {
        move(gradientScale, skip);
        orthogonalize();
        apply(skip);
    }

    /** Returns a view of elements of the direction that ranks shard: the whole, or what is a tensor-parallel rank's. */
    Tensor whole(long first, long count) {
        Tensor sharded = split == null || scratch.share == null ? scratch.direction : scratch.share;
        return scratch.scope.view(sharded, first, count);
    }

    /** Enqueues the new mean, and this rank's part of the direction. */
    void move(Tensor gradientScale, Tensor skip) {
        if (mean == null || directionPart == null || meanPart == null || gradientPart == null) {
            return;
        }
        moving.step(mean, scratch.later, gradientScale, skip, stream);
        if (config.kind() == SGD.Momentum.NESTEROV) {
            scaled(gradientPart, null, directionPart, gradientScale);
            scaled(directionPart, meanPart, directionPart, scratch.ofGradient);
        } else {
            scaled(meanPart, null, directionPart, scratch.one);
        }
    }

    /** Enqueues the update of this rank's weights by its part of the direction. */
    void apply(Tensor skip) {
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

    /** Enqueues the iterations over the whole direction, whose parts tensor-parallel ranks gather. */
    void orthogonalize() {
        if (split != null) {
            split.gather(direction, stream);
        }
        iterate();
        if (split != null) {
            split.take(direction, stream);
        }
    }

    private void iterate() {
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
