package dev.chagres.spark;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.ExceptionFailure;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/** A cluster of this host, whose executors are processes that a worker starts from the Spark home of the build. */
final class LocalCluster implements AutoCloseable {
    private static final Path HOME = Path.of(System.getenv("SPARK_HOME"));

    private final JavaSparkContext spark;
    private final ConcurrentLinkedQueue<String> failures = new ConcurrentLinkedQueue<>();

    /** Starts {@code executors} with room for so many tasks each. */
    LocalCluster(int executors, int tasks) {
        String master = "local-cluster[" + executors + "," + tasks + ",1024]";
        SparkConf conf = new SparkConf()
                .setMaster(master)
                .setAppName("BarrierTraining")
                .set("spark.ui.enabled", "false")
                .set("spark.executor.extraClassPath", classPath())
                .set("spark.executor.extraJavaOptions", "-Dchagres.provider=reference -Dchagres.leaks=all")
                .set("spark.executorEnv.CHAGRES_THREADS", "1")
                .set("spark.scheduler.minRegisteredResourcesRatio", "1.0")
                // On a busy machine an executor begins late.
                .set("spark.scheduler.maxRegisteredResourcesWaitingTime", "10min")
                .set("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
                .set("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "600")
                .set("spark.stage.maxConsecutiveAttempts", "3")
                .set("spark.stage.maxAttempts", "3");
        spark = new JavaSparkContext(conf);
        spark.sc().addSparkListener(new SparkListener() {
            @Override
            public void onTaskEnd(SparkListenerTaskEnd end) {
                if (end.reason() instanceof ExceptionFailure failure) {
                    failures.add(failure.className() + ": " + failure.description());
                }
            }
        });
    }

    /** What is not Spark's: an executor has that from its home. */
    private static String classPath() {
        return Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                .filter(entry -> !Files.exists(
                        HOME.resolve("jars").resolve(Path.of(entry).getFileName())))
                .collect(Collectors.joining(File.pathSeparator));
    }

    JavaSparkContext spark() {
        return spark;
    }

    /** Returns an RDD with these partitions. */
    JavaRDD<String> partitions(List<List<String>> partitions) {
        return spark.parallelize(partitions, partitions.size()).flatMap(List::iterator);
    }

    /** Returns the exceptions of tasks so far. */
    List<String> failures() {
        return List.copyOf(failures);
    }

    /** Returns what all executors have logged since this started. */
    String logs() throws IOException {
        StringBuilder all = new StringBuilder();
        Path work = HOME.resolve("work").resolve(spark.sc().applicationId());
        try (Stream<Path> files = Files.walk(work)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                if (file.getFileName().toString().startsWith("std")) {
                    all.append(Files.readString(file));
                }
            }
        }
        return all.toString();
    }

    @Override
    public void close() {
        spark.close();
    }
}
