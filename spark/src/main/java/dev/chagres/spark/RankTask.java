package dev.chagres.spark;

import dev.chagres.launch.Ranks;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.trainer.Callback;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.BarrierTaskContext;
import org.apache.spark.SparkEnv;
import org.jspecify.annotations.Nullable;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * What each task of the barrier stage does: it is a rank, and trains on its partition.
 *
 * <p>Threading: the task's thread.
 */
final class RankTask extends AbstractFunction1<Iterator<@Nullable String>, Iterator<RankReport>>
        implements Serializable {
    private static final long serialVersionUID = 1;

    private final BarrierConfig config;

    RankTask(BarrierConfig config) {
        this.config = config;
    }

    /**
     * Trains.
     *
     * @throws dev.chagres.nccl.RankFailedException when this rank or another one fails; the text names it
     * @throws dev.chagres.trainer.TrainingException when loss or gradients are not finite
     * @throws IllegalStateException when the ranks do not come together
     */
    @Override
    public Iterator<RankReport> apply(Iterator<@Nullable String> partition) {
        Ranks ranks = Ranks.ofProcesses(new BarrierGroup(BarrierTaskContext.get()))
                .withConfig(CommunicatorConfig.standard().withTimeout(config.timeout()))
                .withPurpose(config.toString());
        List<RankReport> own = ranks.run(rank -> {
            var sequences = new PartitionSequences(CollectionConverters.asJava(partition), rank.index(), config.seed());
            List<Double> losses = new ArrayList<>();
            List<Double> norms = new ArrayList<>();
            Callback noting = Callback.eachStep(step -> {
                losses.add(step.loss());
                norms.add(step.gradNorm());
            });
            try (RankBatches batches = new RankBatches(rank, config.shape(), sequences)) {
                config.trainer(rank.count()).withCallback(noting).train(rank, batches, Integer.MAX_VALUE);
            }
            return new RankReport(rank.index(), SparkEnv.get().executorId(), sequences.taken(), losses, norms);
        });
        return CollectionConverters.asScala(own.iterator());
    }
}
