package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.AttentionMerge;
import dev.chagres.ops.Columns;
import dev.chagres.ops.CrossEntropy;
import dev.chagres.ops.Embedding;
import dev.chagres.ops.Rows;
import dev.chagres.ops.VocabularyCrossEntropy;
import dev.chagres.te.Output;
import java.util.Arrays;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.OperationsPerInvocation;

/** What do embedding and loss of a model cost, in BFLOAT16? */
@NullUnmarked
public class RowOpsBenchmark extends OperationBenchmark {
    private static final int VOCABULARY = 64;
    /** As Llama 3 has it: nearly all rows have no token. */
    private static final int LARGE_VOCABULARY = 128_256;

    private final CrossEntropy entropy = new CrossEntropy(VOCABULARY, 0);
    private final VocabularyCrossEntropy vocabulary = new VocabularyCrossEntropy(0, VOCABULARY, VOCABULARY, 0);
    private Tensor table;
    private Tensor ids;
    private Tensor rows;
    private Tensor gradient;
    private Tensor largeIds;
    private Tensor largeGradient;
    private Tensor order;
    private Tensor target;
    private Tensor logits;
    private Tensor logSumExp;
    private Tensor loss;
    private Tensor counted;
    private Tensor dlogits;
    private Tensor maximum;
    private Tensor sums;
    private Tensor partial;
    private Tensor numbers;
    private Tensor merged;
    private Tensor mergedNumbers;

    /** For JMH. */
    public RowOpsBenchmark() {}

    @Override
    void prepare() {
        int tokens = shape.tokens();
        int[] drawn = drawn(tokens, VOCABULARY);
        table = normal(DType.BFLOAT16, VOCABULARY, shape.hidden());
        ids = ints(drawn);
        rows = empty(DType.BFLOAT16, tokens, shape.hidden());
        gradient = empty(DType.FLOAT32, VOCABULARY, shape.hidden());
        int[] fromMany = drawn(tokens, LARGE_VOCABULARY);
        largeIds = ints(fromMany);
        largeGradient = empty(DType.FLOAT32, LARGE_VOCABULARY, shape.hidden());
        int[] reversed = new int[tokens];
        for (int i = 0; i < tokens; i++) {
            reversed[i] = tokens - 1 - i;
        }
        order = ints(reversed);
        target = empty(DType.BFLOAT16, tokens, shape.hidden());
        logits = zeros(DType.BFLOAT16, tokens, VOCABULARY);
        logSumExp = empty(DType.FLOAT32, tokens);
        loss = empty(DType.FLOAT32, 1);
        counted = empty(DType.INT32, 1);
        dlogits = empty(DType.BFLOAT16, tokens, VOCABULARY);
        maximum = empty(DType.FLOAT32, tokens);
        sums = empty(DType.FLOAT32, 2, tokens);
        partial = scope.view(normal(DType.BFLOAT16, tokens, shape.hidden()), 0, tokens, 1, shape.hidden());
        numbers = scope.view(zeros(DType.FLOAT32, tokens), 0, tokens, 1, 1);
        merged = scope.view(zeros(DType.FLOAT32, tokens, shape.hidden()), 0, tokens, 1, shape.hidden());
        mergedNumbers = scope.view(zeros(DType.FLOAT32, tokens), 0, tokens, 1, 1);
        // Equal sums of exponents: half of each, of which one is 0.
        AttentionMerge.attentionMerge(partial, numbers, merged, mergedNumbers, Output.ADD, stream);
        near("attentionMerge", at(partial, 0) / 2, at(merged, 0), 1e-5);
        int width = Math.toIntExact(shape.hidden());
        embeddingForward();
        near("embeddingForward", at(table, drawn[0] * width), at(rows, 0), 0);
        embeddingBackward();
        long like = Arrays.stream(drawn).filter(id -> id == drawn[0]).count();
        double expected = like * (double) at(rows, 0);
        near("embeddingBackward", expected, at(gradient, drawn[0] * width), 1e-3);
        embeddingBackwardOfLargeVocabulary();
        double sum = 0;
        for (int i = 0; i < tokens; i++) {
            sum += fromMany[i] == fromMany[0] ? at(rows, i * width) : 0;
        }
        near("embeddingBackwardOfLargeVocabulary", sum, at(largeGradient, fromMany[0] * (long) width), 1e-3);
        gatherRows();
        near("gatherRows", at(rows, (tokens - 1) * width), at(target, 0), 0);
        scatterRows();
        near("scatterRows", at(rows, 0), at(target, (tokens - 1) * width), 0);
        copyColumns();
        near("copyColumns", at(rows, 0), at(target, width / 2), 0);
        // Equal logits: every class has the same probability.
        crossEntropyForward();
        near("crossEntropyForward", Math.log(VOCABULARY), at(loss, 0), 1e-4);
        crossEntropyBackward();
        double wanted = (1.0 / VOCABULARY - 1) / tokens;
        near("crossEntropyBackward", 1, at(dlogits, drawn[0]) / wanted, 0.02);
        vocabularyCrossEntropyMaximum();
        near("vocabularyCrossEntropyMaximum", 0, at(maximum, 0), 0);
        vocabularyCrossEntropySums();
        near("vocabularyCrossEntropySums", VOCABULARY, at(sums, 0), 0);
        vocabularyCrossEntropyLoss();
        near("vocabularyCrossEntropyLoss", Math.log(VOCABULARY), at(loss, 0), 1e-4);
        vocabularyCrossEntropyBackward();
        near("vocabularyCrossEntropyBackward", 1, at(dlogits, drawn[0]) / wanted, 0.02);
    }

    /** Attention over some keys merged with that over others, of one head. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void attentionMerge() {
        repeat(() -> AttentionMerge.attentionMerge(partial, numbers, merged, mergedNumbers, Output.ADD, stream));
    }

    /** Rows of the table. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void embeddingForward() {
        repeat(() -> Embedding.forward(table, ids, rows, stream));
    }

    /** The table's gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void embeddingBackward() {
        repeat(() -> Embedding.backward(rows, ids, gradient, Output.OVERWRITE, stream));
    }

    /** The gradient of a table of 128,256 rows. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void embeddingBackwardOfLargeVocabulary() {
        repeat(() -> Embedding.backward(rows, largeIds, largeGradient, Output.OVERWRITE, stream));
    }

    /** Rows gathered. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gatherRows() {
        repeat(() -> Rows.gatherRows(rows, order, target, stream));
    }

    /** Rows scattered. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void scatterRows() {
        repeat(() -> Rows.scatterRows(rows, order, target, stream));
    }

    /** Half of the columns, as ranks exchange heads. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void copyColumns() {
        long half = shape.hidden() / 2;
        repeat(() -> Columns.copyColumns(rows, 0, target, half, half, stream));
    }

    /** The loss. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void crossEntropyForward() {
        repeat(() -> entropy.forward(logits, ids, null, logSumExp, null, loss, counted, stream));
    }

    /** Its gradient. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void crossEntropyBackward() {
        repeat(() -> entropy.backward(logits, ids, logSumExp, counted, CrossEntropy.Factors.one(), dlogits, stream));
    }

    /** The largest logit of a rank's classes. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void vocabularyCrossEntropyMaximum() {
        repeat(() -> vocabulary.maximum(logits, maximum, stream));
    }

    /** The sums over a rank's classes. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void vocabularyCrossEntropySums() {
        repeat(() -> vocabulary.sums(logits, ids, maximum, sums, stream));
    }

    /** The loss from the sums of all ranks, behind a copy of the maximum, which it overwrites. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void vocabularyCrossEntropyLoss() {
        repeat(() -> {
            logSumExp.copyFrom(stream, maximum);
            vocabulary.loss(logSumExp, sums, ids, null, null, loss, counted, stream);
        });
    }

    /** The gradient of a rank's logits. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void vocabularyCrossEntropyBackward() {
        repeat(() -> vocabulary.backward(logits, ids, logSumExp, counted, CrossEntropy.Factors.one(), dlogits, stream));
    }
}
