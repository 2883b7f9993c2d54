package dev.chagres.layer;

import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.adapter.LowRankAdapter;
import dev.chagres.adapter.LowRankAdapter.Section;
import dev.chagres.adapter.LowRankAdapter.Split;
import dev.chagres.attention.Sequences;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * How a linear layer is split among tensor-parallel ranks: what a rank declares, and what is reduced over the ranks.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: the operators f and g of Shoeybi et al., Megatron-LM (2019).
 *
 * @param sections sizes along the dimension that is split
 */
record LinearSplit(ParallelMode mode, TensorParallel ranks, long inputs, long outputs, List<Long> sections) {
    /** Splits the whole product as {@code mode} says among the ranks of {@code plan}. */
    static LinearSplit of(ParallelMode mode, long inputs, long outputs, ModelPlan plan) {
        return switch (mode) {
            case NONE -> whole(inputs, outputs);
            case COLUMN -> ofSections(inputs, List.of(outputs), plan);
            case ROW -> {
                TensorParallel ranks = plan.tensorParallel();
                ranks.share("inputs", plan.name(), inputs);
                yield new LinearSplit(ParallelMode.ROW, ranks, inputs, outputs, List.of(inputs));
            }
        };
    }

    /** Returns the split of a layer that every rank has whole. */
    static LinearSplit whole(long inputs, long outputs) {
        return new LinearSplit(ParallelMode.NONE, TensorParallel.none(), inputs, outputs, List.of(outputs));
    }

    /**
     * Returns the split of a layer whose weight another one declared: by rows, if each rank has some rows of it, in which case all ranks
     * have all tokens.
     */
    static LinearSplit tied(Parameter weight, ModelPlan plan) {
        ParameterSplit split = weight.split();
        long outputs = weight.wholeShape().size(0);
        long inputs = weight.wholeShape().size(1);
        if (split == null) {
            return whole(inputs, outputs);
        }
        TensorParallel ranks = plan.tensorParallel().withoutSequenceParallel();
        if (!ranks.isSplit()) {
            throw new IllegalArgumentException("weight: expected a whole one in the plan of whole layers, got " + weight
                    + ", rank " + split.rank() + "'s part of " + split.ranks() + "; give a plan of the same"
                    + " tensor-parallel ranks, such as a child of the weight's own");
        }
        if (split.dimension() != 0 || split.rank() != ranks.rank() || split.ranks() != ranks.size()) {
            throw new IllegalArgumentException("weight: expected a whole one, or some rows of it for " + ranks
                    + ", got " + weight + ", split by dimension " + split.dimension() + " for rank " + split.rank()
                    + " of " + split.ranks());
        }
        return new LinearSplit(ParallelMode.COLUMN, ranks, inputs, outputs, split.sections());
    }

    /** Splits the outputs, which have sections of these sizes. */
    static LinearSplit ofSections(long inputs, List<Long> sections, ModelPlan plan) {
        TensorParallel ranks = plan.tensorParallel();
        long outputs = 0;
        for (long section : sections) {
            ranks.share("outputs", plan.name(), section);
            outputs += section;
        }
        return new LinearSplit(ParallelMode.COLUMN, ranks, inputs, outputs, sections);
    }

    /** Returns whether a rank has a part of the weight. */
    boolean isSplit() {
        return ranks.isSplit();
    }

    /** Declares this rank's part of the weight [out, in]. */
    Parameter declareWeight(Initializer initializer, ModelPlan plan) {
        return ranks.isSplit()
                ? plan.declareProductWeight(
                        "weight", initializer, part(mode == ParallelMode.ROW ? 1 : 0, outputs, inputs))
                : plan.declareProductWeight("weight", initializer, outputs, inputs);
    }

    /**
     * Declares this rank's part of the bias [out]; in a row-parallel layer all of it, and its gradient is then a sum over the tokens that
     * this rank has outside of the layer.
     */
    Parameter declareBias(ModelPlan plan) {
        if (ranks.isSplit() && mode == ParallelMode.COLUMN) {
            return plan.declare("bias", Initializer.zeros(), part(0, outputs));
        }
        return (gathersGradient() ? plan.forTokenParts() : plan).declare("bias", Initializer.zeros(), outputs);
    }

    /**
     * Declares the adapters that the plan asks for.
     *
     * @param names of the sections of the outputs
     */
    @Nullable
    LowRankAdapter declareAdapter(List<String> names, ModelPlan plan) {
        List<Long> sizes = mode == ParallelMode.ROW ? List.of(outputs) : sections;
        List<Section> named = IntStream.range(0, sizes.size())
                .mapToObj(i -> new Section(names.get(i), sizes.get(i)))
                .toList();
        Split parts = switch (mode) {
            case NONE -> Split.NONE;
            case COLUMN -> Split.OUTPUTS;
            case ROW -> Split.INPUTS;
        };
        return LowRankAdapter.of(inputs, named, parts, plan);
    }

    private ParameterSplit part(int dimension, long... sizes) {
        return new ParameterSplit(new Shape(sizes), dimension, sections, ranks.rank(), ranks.size());
    }

    /** Returns whether a rank has a part of the tokens outside of the layers that are split. */
    boolean sharesTokens() {
        return ranks.isSequenceParallel() && mode != ParallelMode.NONE;
    }

    /** Returns the tokens that products compute where {@code rows} stand outside. */
    long productRows(long rows) {
        return sharesTokens() ? rows * ranks.size() : rows;
    }

    /**
     * Checks that each rank can have as many of the tokens where it has a part of them outside.
     *
     * @param tokens of all these ranks, which may be those of one of several context-parallel ranks
     */
    void checkDivides(long tokens, Sequences sequences) {
        if (sharesTokens() && tokens % ranks.size() != 0) {
            throw new IllegalArgumentException("sequences: expected a number of tokens that the " + ranks.size()
                    + " sequence-parallel ranks divide, got "
                    + (tokens == sequences.tokens() ? "" : tokens + " on this context-parallel rank, of ") + sequences
                    + "; pad them");
        }
    }

    /** Returns whether products read all tokens of an input of which a rank has a part. */
    boolean gathersInput() {
        return mode == ParallelMode.COLUMN && sharesTokens();
    }

    /** Returns whether products read all tokens of a gradient of the output of which a rank has a part. */
    boolean gathersGradient() {
        return mode == ParallelMode.ROW && sharesTokens();
    }

    /** Returns the input of the products of a column-parallel layer: all tokens, gathered where a rank has a part of them. */
    Tensor gatheredInput(Tensor x, Pass pass) {
        return gathersInput() ? gathered(x, pass) : x;
    }

    /** Returns the gradient of the output of a row-parallel layer, likewise. */
    Tensor gatheredGradient(Tensor dy, Pass pass) {
        return gathersGradient() ? gathered(dy, pass) : dy;
    }

    private Tensor gathered(Tensor part, Pass pass) {
        Tensor whole = pass.temporary().tensor(part.dtype(), productRows(part.size(0)), part.size(1));
        ranks.gather(part, whole, pass.stream());
        return whole;
    }

    /** Returns the tensor for this rank's term of {@code sum}. */
    Tensor term(Tensor sum, ParallelMode summed, Pass pass) {
        return mode == summed && sharesTokens()
                ? pass.temporary().tensor(sum.dtype(), productRows(sum.size(0)), sum.size(1))
                : sum;
    }

    /** Returns whether each rank's product is a term of the output, to which the bias is added once. */
    boolean sumsOutput() {
        return ranks.isSplit() && mode == ParallelMode.ROW;
    }

    /** Enqueues the sum over the ranks of the gradient of an input that is the same on all of them, or of which each has a part. */
    void sumInputGradient(Tensor term, Tensor dx, Pass pass) {
        if (mode == ParallelMode.COLUMN) {
            sumOutput(term, dx, pass);
        }
    }

    /** Enqueues the sum of the ranks' terms of the output, or of the rank's part of the tokens. */
    void sumOutput(Tensor term, Tensor sum, Pass pass) {
        if (sharesTokens()) {
            ranks.reduceScatter(term, sum, pass.stream());
        } else {
            ranks.sum(sum, pass.stream());
        }
    }

    /**
     * Describes the reductions over ranks, after the products; empty if a rank has all.
     *
     * @param form of what is gathered where ranks are sequence-parallel, such as {@code in eight bits}; empty for the model's type
     * @param again how backward gathers the input, such as {@code again}
     */
    String explain(boolean hasBias, String form, String again) {
        if (!ranks.isSplit()) {
            return "";
        }
        if (sharesTokens()) {
            return "; " + (mode == ParallelMode.COLUMN ? "rows" : "columns") + " of the weight on each of "
                    + ranks.size() + " ranks, "
                    + (mode == ParallelMode.COLUMN
                            ? "whose tokens ncclAllGather gathers" + form + ", in backward " + again
                                    + ", where ncclReduceScatter sums the input's gradient"
                            : "over which ncclReduceScatter sums the output, whose gradient ncclAllGather gathers"
                                    + form + (hasBias ? "; ops_bias_add adds the bias" : ""));
        }
        return mode == ParallelMode.COLUMN
                ? "; rows of the weight on each of " + ranks.size()
                        + " ranks, over which backward sums the input's gradient by ncclAllReduce"
                : "; columns of the weight on each of " + ranks.size()
                        + " ranks, over which forward sums the output by ncclAllReduce"
                        + (hasBias ? ", before ops_bias_add adds the bias" : "");
    }
}
