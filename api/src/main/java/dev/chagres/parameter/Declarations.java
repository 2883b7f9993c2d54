package dev.chagres.parameter;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The declarations of all parts of one plan: parameters by group, and quantizer sites.
 *
 * <p>Threading: one thread at a time.
 */
final class Declarations {
    /** The most elements whose bytes, alignment of parameters included, a long can count. */
    private static final long MOST_ELEMENTS = Long.MAX_VALUE / 16;

    final TensorParallel tensorParallel;
    final ContextParallel contextParallel;
    /** Who has allocated the model that this is, or is a part of. */
    final PlanClaim claim;

    private final Map<String, List<Parameter>> groups = new LinkedHashMap<>();
    private final List<Parameter> parameters = new ArrayList<>();
    /** The declarations of the model that this is a part of; else this. */
    private List<Parameter> model = parameters;

    private final Set<String> names = new HashSet<>();
    private final Set<String> siteNames = new HashSet<>();
    private final List<QuantizerSite> sites = new ArrayList<>();
    private Trainable trainable = Trainable.all();
    private @Nullable LoraConfig lora;
    /** Names of the products that asked for adapters. */
    private final Set<String> products = new LinkedHashSet<>();

    private long count;
    private int ranks = 1;
    private int alignment = ParameterLayout.ALIGNMENT;
    private DType productGradients = DType.FLOAT32;

    Declarations(TensorParallel tensorParallel, ContextParallel contextParallel) {
        this(tensorParallel, contextParallel, new PlanClaim());
    }

    private Declarations(TensorParallel tensorParallel, ContextParallel contextParallel, PlanClaim claim) {
        this.tensorParallel = tensorParallel;
        this.contextParallel = contextParallel;
        this.claim = claim;
    }

    /**
     * Freezes what is declared from now on, but for what {@code chosen} trains.
     *
     * @throws IllegalStateException when something is declared already
     */
    void train(Trainable chosen) {
        ensureEmpty("train");
        trainable = chosen;
    }

    /**
     * Gives products that are declared from now on adapters, and trains nothing else but what {@code config} says.
     *
     * @throws IllegalStateException when something is declared already
     */
    void adapt(LoraConfig config) {
        ensureEmpty("adapt");
        lora = config;
        trainable = new Trainable(config.trained(), List.of());
    }

    private void ensureEmpty(String method) {
        if (!parameters.isEmpty()) {
            throw new IllegalStateException(method + ": expected a plan without parameters, got one with "
                    + parameters.getFirst().name() + "; call it before layers are made");
        }
    }

    /** Returns the adapters of the product of that name; null where it has none. */
    @Nullable
    LoraConfig lora(String product) {
        products.add(product);
        return lora != null && lora.isTarget(product) ? lora.of(product) : null;
    }

    /** Freezes a parameter that is not trained, unless it is an adapter's. */
    void choose(Parameter parameter, boolean isAdapter) {
        if (!isAdapter && !trainable.trains(parameter.name())) {
            parameter.freeze();
        }
    }

    /**
     * Checks that the patterns and targets mean something.
     *
     * @throws IllegalArgumentException when one means nothing
     */
    void checkChoice() {
        trainable.check(model);
        LoraConfig config = lora;
        if (config != null) {
            for (LoraConfig.Own own : config.own()) {
                LoraConfig meant = config.withTargets(own.target());
                if (products.stream().noneMatch(product -> meant.isTarget(product) && config.isTarget(product))) {
                    throw new IllegalArgumentException("own: expected names of products that have adapters, which are "
                            + String.join(
                                    ", ",
                                    products.stream().filter(config::isTarget).toList())
                            + ", got " + own.target());
                }
            }
            for (String target : config.targets()) {
                if (products.stream()
                        .noneMatch(product -> config.withTargets(target).isTarget(product))) {
                    throw new IllegalArgumentException("targets: expected names of products, which are "
                            + String.join(", ", products) + ", got " + target);
                }
            }
        }
    }

    /**
     * Adds a parameter to the group of that name.
     *
     * @throws IllegalArgumentException when its name is taken, or there would be too many elements
     * @throws IllegalStateException while parameters have memory
     */
    void add(String group, Parameter parameter) {
        claim.ensureDeclares(parameter.name());
        Shape shape = parameter.shape();
        if (shape.rank() == 0 || isTooMany(shape)) {
            throw new IllegalArgumentException(parameter.name() + ": expected 1 to " + Shape.MAX_RANK
                    + " dimensions and, with all declared before it, at most " + MOST_ELEMENTS + " elements, got "
                    + shape);
        }
        if (!names.add(parameter.name())) {
            throw taken(parameter.name());
        }
        addAll(group, List.of(parameter));
    }

    private static IllegalArgumentException taken(String what) {
        return new IllegalArgumentException("name: expected one that is not declared yet, got " + what
                + "; give each layer a part of the plan of" + " its own, such as plan.child(\"fc1\")");
    }

    private boolean isTooMany(Shape shape) {
        try {
            return shape.count() > MOST_ELEMENTS - count;
        } catch (ArithmeticException e) {
            return true;
        }
    }

    private void addAll(String group, List<Parameter> members) {
        groups.computeIfAbsent(group, _ -> new ArrayList<>()).addAll(members);
        parameters.addAll(members);
        for (Parameter member : members) {
            count += member.shape().count();
        }
    }

    /**
     * Adds a quantizer site, and returns it.
     *
     * @throws IllegalArgumentException when its name is taken
     * @throws IllegalStateException while parameters have memory
     */
    QuantizerSite add(QuantizerSite site) {
        claim.ensureDeclares(site.name());
        if (!siteNames.add(site.name())) {
            throw taken("the quantizer site " + site.name());
        }
        sites.add(site);
        return site;
    }

    /**
     * Returns declarations of some of the parameters, the same objects, and of all sites. Nothing more can be declared in either.
     *
     * @param kind parameters of a group whose kinds are not equal form groups of their own
     */
    Declarations part(Predicate<Parameter> chosen, Function<Parameter, ?> kind) {
        Declarations part = new Declarations(tensorParallel, contextParallel, claim);
        groups.forEach((name, members) -> {
            Map<Object, List<Parameter>> kinds = members.stream()
                    .filter(chosen)
                    .collect(Collectors.groupingBy(
                            one -> Checks.<Object>given("kind of " + one.name(), kind.apply(one)),
                            LinkedHashMap::new,
                            Collectors.toList()));
            kinds.forEach((same, kept) -> part.addAll(kinds.size() == 1 ? name : name + " " + same, kept));
        });
        part.model = model;
        part.trainable = trainable;
        part.lora = lora;
        part.products.addAll(products);
        part.sites.addAll(sites);
        part.ranks = ranks;
        part.alignment = alignment;
        part.productGradients = productGradients;
        return part;
    }

    /** Returns the number of ranks for which groups are padded. */
    int ranks() {
        return ranks;
    }

    void padFor(int newRanks) {
        ranks = newRanks;
    }

    /** Returns of how many elements each parameter begins at a multiple. */
    int alignment() {
        return alignment;
    }

    void alignTo(int elements) {
        alignment = elements;
    }

    /** Returns the type of gradients that products alone write. */
    DType productGradients() {
        return productGradients;
    }

    void productGradients(DType dtype) {
        productGradients = dtype;
    }

    /** Returns the parameters whose names begin with {@code prefix}, in the order of their declaration. */
    List<Parameter> parameters(String prefix) {
        return prefix.isEmpty()
                ? Collections.unmodifiableList(parameters)
                : parameters.stream()
                        .filter(parameter -> parameter.name().startsWith(prefix))
                        .toList();
    }

    /** Returns the parameters of the model that this is a part of, those of other stages of a pipeline, too. */
    List<Parameter> ofModel() {
        return Collections.unmodifiableList(model);
    }

    /** Returns the groups by name, in the order in which they were begun. */
    Map<String, List<Parameter>> groups() {
        return Collections.unmodifiableMap(groups);
    }

    /** Returns the places where a recipe may cast, in the order of their declaration. */
    List<QuantizerSite> sites() {
        return Collections.unmodifiableList(sites);
    }

    /** Returns a table of the groups: name, parameters, elements. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        groups.forEach((name, members) ->
                text.append(line(name.isEmpty() ? "(no group)" : name, members)).append(System.lineSeparator()));
        return text + line("all", parameters);
    }

    private static String line(String name, List<Parameter> members) {
        return String.format(
                "%-24s %4d parameters %,15d elements",
                name,
                members.size(),
                members.stream()
                        .mapToLong(parameter -> parameter.shape().count())
                        .sum());
    }
}
