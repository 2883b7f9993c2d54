package dev.chagres.spark;

import java.util.Comparator;
import java.util.List;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import scala.reflect.ClassTag;

/**
 * Trains ESM-2 on an RDD of protein sequences as one barrier stage: each partition is the data of a rank, and each task a rank, in an
 * executor of its own.
 *
 * <p>Threading: thread-safe.
 */
public final class BarrierTraining {
    private BarrierTraining() {}

    /**
     * Trains on {@code sequences}, each once, and waits for the end. Their partitions are the ranks; {@code repartition} before makes as many
     * as there are executors.
     *
     * <p>When a task fails, the others end, and Spark runs the whole stage again from the first weights, as often as {@code
     * spark.stage.maxConsecutiveAttempts} says.
     *
     * @param sequences one letter a residue
     * @throws IllegalArgumentException when there is no partition
     */
    public static TrainingReport train(JavaRDD<String> sequences, BarrierConfig config) {
        if (sequences.getNumPartitions() < 1) {
            throw new IllegalArgumentException("sequences: expected a partition for each rank, got none");
        }
        ClassTag<RankReport> type = ClassTag.apply(RankReport.class);
        RDD<RankReport> reports = sequences.rdd().barrier().mapPartitions(new RankTask(config), false, type);
        // The shuffle makes the stage one that Spark may repeat: it never does that with a stage that ends a job.
        List<RankReport> all = reports.toJavaRDD().repartition(1).collect();
        return new TrainingReport(
                all.stream().sorted(Comparator.comparingInt(RankReport::rank)).toList());
    }
}
