package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Low-rank adapters of the products of a plan: {@code y = x W^T + b + factor dropout(x) A^T B^T}, with A [rank, in] and B [out, rank]. W and b
 * are frozen; A begins with uniform numbers, B with zeros, so that the first output is that of the product alone.
 *
 * <p>A target is the name of a product, or the end of one behind a dot: {@code mlp.fc1} means that of every layer. The products of a {@code
 * TransformerLayer} are called {@code attention.qkv.linear.query}, {@code .key} and {@code .value}, {@code attention.projection}, {@code mlp.fc1}
 * and {@code mlp.fc2}, a {@code Linear} like its part of the plan. Where several targets are sections of one product, as query, key and value
 * are, their adapters share the dropped input.
 *
 * {@snippet file="dev/chagres/adapter/LoraExampleTest.java" region="lora"}
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Hu et al., LoRA (2021); Kalajdzievski, rank-stabilized LoRA (2023); {@code LoraConfig} of PEFT.
 *
 * @param rank of the adapters, at least 1
 * @param alpha above 0
 * @param scaling how the factor follows from alpha and rank
 * @param dropout probability of leaving out a value of an adapter's input in training, from 0 to below 1
 * @param targets names of products
 * @param trained patterns of parameters that are trained besides, such as {@code classifier}: see {@link Trainable}
 * @param own targets with another rank or alpha; of several that mean a product the first one counts
 */
public record LoraConfig(
        int rank,
        float alpha,
        Scaling scaling,
        float dropout,
        Set<String> targets,
        List<String> trained,
        List<Own> own) {
    /**
     * A target with a rank and an alpha of its own.
     *
     * @param target the name of a product, or the end of one behind a dot
     * @param rank at least 1
     * @param alpha above 0
     */
    public record Own(String target, int rank, float alpha) {
        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of range, or the name is empty
         */
        public Own {
            if (Checks.given("target", target).isBlank()) {
                throw new IllegalArgumentException("target: expected the name of a product, got an empty one");
            }
            check(rank, alpha);
        }
    }

    /** How the factor follows from alpha and rank. */
    public enum Scaling {
        /** alpha / rank. */
        RANK,
        /** alpha / sqrt(rank), so that higher ranks learn as fast. */
        ROOT_OF_RANK
    }

    private static final int MOST = 1 << 16;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of range, or there is no target
     */
    public LoraConfig {
        Checks.given("scaling", scaling);
        targets = Checks.givenAll("targets", targets);
        trained = Checks.givenAll("trained", trained);
        own = Checks.givenAll("own", own);
        check(rank, alpha);
        Checks.probability("dropout", dropout);
        if (targets.isEmpty() || targets.stream().anyMatch(String::isBlank)) {
            throw new IllegalArgumentException(
                    "targets: expected at least one name of a product, such as query, none of them empty, got "
                            + targets);
        }
    }

    private static void check(int rank, float alpha) {
        Numbers.within("rank", rank, 1, MOST);
        if (!(alpha > 0) || Float.isInfinite(alpha)) {
            throw new IllegalArgumentException("alpha: expected a finite number above 0, got " + alpha);
        }
    }

    /** Makes adapters of the products that end in {@code targets}: alpha = rank, no dropout, nothing else trained. */
    public static LoraConfig of(int rank, String... targets) {
        return new LoraConfig(
                rank,
                rank,
                Scaling.RANK,
                0,
                Set.copyOf(List.of(Checks.givenAll("targets", targets))),
                List.of(),
                List.of());
    }

    /** Returns the same with another alpha. */
    public LoraConfig withAlpha(float newAlpha) {
        return new LoraConfig(rank, newAlpha, scaling, dropout, targets, trained, own);
    }

    /** Returns the same with another scaling. */
    public LoraConfig withScaling(Scaling newScaling) {
        return new LoraConfig(rank, alpha, newScaling, dropout, targets, trained, own);
    }

    /** Returns the same with another probability of dropout. */
    public LoraConfig withDropout(float newDropout) {
        return new LoraConfig(rank, alpha, scaling, newDropout, targets, trained, own);
    }

    /** Returns the same with other targets. */
    public LoraConfig withTargets(String... newTargets) {
        Set<String> names = Set.copyOf(List.of(Checks.givenAll("newTargets", newTargets)));
        return new LoraConfig(rank, alpha, scaling, dropout, names, trained, own);
    }

    /** Returns the same with parameters that are trained besides. */
    public LoraConfig withTrained(String... patterns) {
        return new LoraConfig(
                rank, alpha, scaling, dropout, targets, List.of(Checks.givenAll("patterns", patterns)), own);
    }

    /**
     * Returns the same with a rank and an alpha of their own for the products that {@code target} means.
     *
     * @throws IllegalArgumentException when a number is out of range, or the name is empty
     */
    public LoraConfig withOwn(String target, int ownRank, float ownAlpha) {
        List<Own> all = new ArrayList<>(own);
        all.add(new Own(target, ownRank, ownAlpha));
        return new LoraConfig(rank, alpha, scaling, dropout, targets, trained, all);
    }

    /** Returns the same with the rank and the alpha of the product of that name, and with none that has its own. */
    public LoraConfig of(String product) {
        Checks.given("product", product);
        Optional<Own> found =
                own.stream().filter(one -> means(one.target(), product)).findFirst();
        return new LoraConfig(
                found.map(Own::rank).orElse(rank),
                found.map(Own::alpha).orElse(alpha),
                scaling,
                dropout,
                targets,
                trained,
                List.of());
    }

    private static boolean means(String target, String product) {
        return product.equals(target) || product.endsWith("." + target);
    }

    /** Returns the factor of the adapters' products, of those without a rank and an alpha of their own. */
    public float factor() {
        return scaling == Scaling.RANK ? alpha / rank : (float) (alpha / Math.sqrt(rank));
    }

    /** Returns whether the product of that name is a target. */
    public boolean isTarget(String name) {
        Checks.given("name", name);
        return targets.stream().anyMatch(target -> means(target, name));
    }
}
