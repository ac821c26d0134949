// fit answers whether kube-scheduler would place a pending pod: the default profile's own plugins, on objects from stdin.
//
// Each line is a request {"id", "objects", "pod", "node"}: all objects of a cluster, and the key of the pending pod.
// Each line of the answer is {"id", "nodes", "message", "victims", "objects"}, in any order.
// No API server and no goroutine of an informer takes part: informers hold the objects from the start.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	coreinformers "k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	policyinformers "k8s.io/client-go/informers/policy"
	resourceinformers "k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// request is one cluster.
type request struct {
	ID int `json:"id"`
	// Objects have apiVersion and kind. Defaults are set as the API server sets them.
	Objects []json.RawMessage `json:"objects"`
	// Pod is the namespace and name of the pending pod, with a slash between them.
	Pod string `json:"pod"`
	// Echo asks for the objects with their defaults, once they are found valid.
	Echo bool `json:"echo"`
	// Preempt asks for the victims that the scheduler would offer on each node.
	Preempt bool `json:"preempt"`
}

// answer is what the plugins say.
type answer struct {
	ID int `json:"id"`
	// Nodes has the reasons against each node; none where the pod fits.
	Nodes map[string][]string `json:"nodes"`
	// Message is what the scheduler would write into the condition PodScheduled; empty if it fits somewhere.
	Message string `json:"message"`
	// Reason is that of the condition.
	Reason string `json:"reason"`
	// Victims are UIDs by node.
	Victims map[string]victims  `json:"victims,omitempty"`
	Objects []apiruntime.Object `json:"objects,omitempty"`
	Error   string              `json:"error,omitempty"`
}

type victims struct {
	Pods       []string `json:"pods"`
	Violations int      `json:"violations"`
}

// heldInformer has all of its objects from the start and tells handlers of them at once.
type heldInformer struct {
	cache.SharedIndexInformer // nil: what is not overridden here must not be called
	indexer                   cache.Indexer
}

type registered struct{}

func (registered) HasSynced() bool                     { return true }
func (registered) HasSyncedChecker() cache.DoneChecker { return synced{} }

type synced struct{}

var closed = func() chan struct{} { made := make(chan struct{}); close(made); return made }()

func (synced) Name() string          { return "held" }
func (synced) Done() <-chan struct{} { return closed }

func (i *heldInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	for _, object := range i.indexer.List() {
		handler.OnAdd(object, true)
	}
	return registered{}, nil
}

func (i *heldInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *heldInformer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

func (i *heldInformer) RemoveEventHandler(cache.ResourceEventHandlerRegistration) error { return nil }
func (i *heldInformer) GetStore() cache.Store                                           { return i.indexer }
func (i *heldInformer) GetIndexer() cache.Indexer                                       { return i.indexer }
func (i *heldInformer) HasSynced() bool                                                 { return true }
func (i *heldInformer) HasSyncedChecker() cache.DoneChecker                             { return synced{} }
func (i *heldInformer) AddIndexers(indexers cache.Indexers) error {
	return i.indexer.AddIndexers(indexers)
}

// heldFactory hands out heldInformers.
type heldFactory struct {
	informers.SharedInformerFactory // nil: a group that is not overridden here must not be asked for
	objects                         map[reflect.Type][]apiruntime.Object
	made                            map[reflect.Type]*heldInformer
}

func (f *heldFactory) InformerFor(object apiruntime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	of := reflect.TypeOf(object)
	if known := f.made[of]; known != nil {
		return known
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	made := &heldInformer{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)}
	for _, one := range f.objects[of] {
		if err := made.indexer.Add(one); err != nil {
			panic(err)
		}
	}
	f.made[of] = made
	return made
}

func (f *heldFactory) Start(<-chan struct{})             {}
func (f *heldFactory) InformerName() *cache.InformerName { return nil }
func (f *heldFactory) Core() coreinformers.Interface     { return coreinformers.New(f, "", nil) }
func (f *heldFactory) Apps() apps.Interface              { return apps.New(f, "", nil) }
func (f *heldFactory) Policy() policyinformers.Interface { return policyinformers.New(f, "", nil) }
func (f *heldFactory) Resource() resourceinformers.Interface {
	return resourceinformers.New(f, "", nil)
}
func (f *heldFactory) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }
func (f *heldFactory) Storage() storage.Interface       { return storage.New(f, "", nil) }

// nominator knows the pods whose status names a node for them.
type nominator map[string][]fwk.PodInfo

func (nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (nominator) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (nominator) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo              { return n[node] }

// scheduler has what all clusters share.
type scheduler struct {
	profile  config.KubeSchedulerProfile
	client   *fake.Clientset
	recorder *metrics.MetricAsyncRecorder
	decoder  apiruntime.Decoder
}

func (s *scheduler) answer(asked request) (told answer) {
	defer func() {
		if failure := recover(); failure != nil {
			told = answer{ID: asked.ID, Error: fmt.Sprint(failure)}
		}
	}()
	told = answer{ID: asked.ID, Nodes: map[string][]string{}}
	if err := s.judge(asked, &told); err != nil {
		told.Error = err.Error()
	}
	return told
}

func (s *scheduler) judge(asked request, told *answer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	factory := &heldFactory{objects: map[reflect.Type][]apiruntime.Object{}, made: map[reflect.Type]*heldInformer{}}
	var bound []*v1.Pod
	var nodes []*v1.Node
	var pending *v1.Pod
	nominated := nominator{}
	for _, raw := range asked.Objects {
		object, _, err := s.decoder.Decode(raw, nil, nil)
		if err != nil {
			return fmt.Errorf("%w: %s", err, raw)
		}
		legacyscheme.Scheme.Default(object)
		if asked.Echo {
			if err := valid(object); err != nil {
				return fmt.Errorf("%w: %s", err, raw)
			}
			told.Objects = append(told.Objects, object.DeepCopyObject())
		}
		switch one := object.(type) {
		case *v1.Node:
			nodes = append(nodes, one)
		case *v1.Pod:
			if one.Namespace+"/"+one.Name == asked.Pod {
				pending = one
			} else if one.Status.Phase == v1.PodSucceeded || one.Status.Phase == v1.PodFailed {
				continue // as the scheduler's own informer
			} else if one.Spec.NodeName != "" {
				bound = append(bound, one)
			} else if node := one.Status.NominatedNodeName; node != "" {
				info, err := framework.NewPodInfo(one)
				if err != nil {
					return err
				}
				nominated[node] = append(nominated[node], info)
			}
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		if accessor.GetResourceVersion() == "" {
			accessor.SetResourceVersion("1")
		}
		of := reflect.TypeOf(object)
		factory.objects[of] = append(factory.objects[of], object)
	}
	if pending == nil {
		return fmt.Errorf("no pod %s", asked.Pod)
	}
	made, preemption, err := s.framework(ctx, factory, internalcache.NewSnapshot(bound, nodes), nominated)
	if err != nil {
		return err
	}
	return place(ctx, made, preemption, factory, pending, nodes, asked.Preempt, told)
}

// valid is the API server's validation, of the kinds that a test may easily get wrong.
func valid(object apiruntime.Object) error {
	switch one := object.(type) {
	case *v1.Pod:
		var pod core.Pod
		if err := legacyscheme.Scheme.Convert(one, &pod, nil); err != nil {
			return err
		}
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
		return corevalidation.ValidatePodSpec(&pod.Spec, &pod.ObjectMeta, field.NewPath("spec"), options).ToAggregate()
	case *v1.Node:
		var node core.Node
		if err := legacyscheme.Scheme.Convert(one, &node, nil); err != nil {
			return err
		}
		return corevalidation.ValidateNode(&node).ToAggregate()
	case *resourceapi.ResourceClaim:
		var claim resource.ResourceClaim
		if err := legacyscheme.Scheme.Convert(one, &claim, nil); err != nil {
			return err
		}
		claim.ResourceVersion = "1"
		old := claim.DeepCopy()
		old.Status = resource.ResourceClaimStatus{}
		found := resourcevalidation.ValidateResourceClaim(&claim)
		return append(found, resourcevalidation.ValidateResourceClaimStatusUpdate(&claim, old)...).ToAggregate()
	case *resourceapi.ResourceSlice:
		var slice resource.ResourceSlice
		if err := legacyscheme.Scheme.Convert(one, &slice, nil); err != nil {
			return err
		}
		return resourcevalidation.ValidateResourceSlice(&slice).ToAggregate()
	case *resourceapi.DeviceClass:
		var class resource.DeviceClass
		if err := legacyscheme.Scheme.Convert(one, &class, nil); err != nil {
			return err
		}
		return resourcevalidation.ValidateDeviceClass(&class).ToAggregate()
	}
	return nil
}

// framework is the default profile on a snapshot.
func (s *scheduler) framework(ctx context.Context, factory *heldFactory, snapshot *internalcache.Snapshot, nominated nominator) (framework.Framework, *defaultpreemption.DefaultPreemption, error) {
	logger := klog.FromContext(ctx)
	claims := assumecache.NewAssumeCache(logger, factory.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	options := resourceslicetracker.Options{
		EnableDeviceTaintRules:   utilfeature.DefaultFeatureGate.Enabled(features.DRADeviceTaintRules),
		EnableConsumableCapacity: utilfeature.DefaultFeatureGate.Enabled(features.DRAConsumableCapacity),
		SliceInformer:            factory.Resource().V1().ResourceSlices(),
	}
	if options.EnableDeviceTaintRules {
		options.TaintInformer = factory.Resource().V1beta2().DeviceTaintRules()
		options.ClassInformer = factory.Resource().V1().DeviceClasses()
	}
	tracker, err := resourceslicetracker.StartTracker(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	manager := dynamicresources.NewDRAManager(ctx, claims, tracker, factory)
	if resolver, ok := manager.DeviceClassResolver().(cache.ResourceEventHandler); ok {
		if _, err := factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(resolver); err != nil {
			return nil, nil, err
		}
	}
	var preemption *defaultpreemption.DefaultPreemption
	registry := plugins.NewInTreeRegistry()
	plain := registry[names.DefaultPreemption]
	registry[names.DefaultPreemption] = func(ctx context.Context, args apiruntime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		made, err := plain(ctx, args, handle)
		preemption, _ = made.(*defaultpreemption.DefaultPreemption)
		return made, err
	}
	made, err := frameworkruntime.NewFramework(ctx, registry, &s.profile,
		frameworkruntime.WithClientSet(s.client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSharedDRAManager(manager),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithPodNominator(nominated),
		frameworkruntime.WithParallelism(1),
		frameworkruntime.WithMetricsRecorder(s.recorder),
		frameworkruntime.WithPodGroupManager(internalcache.New(ctx, nil, false)),
	)
	return made, preemption, err
}

// place is Scheduler.findNodesThatFitPod, with the reasons against each node.
func place(ctx context.Context, made framework.Framework, preemption *defaultpreemption.DefaultPreemption, factory *heldFactory, pod *v1.Pod, nodes []*v1.Node, preempt bool, told *answer) error {
	for _, plugin := range made.PreEnqueuePlugins() {
		if status := plugin.PreEnqueue(ctx, pod); !status.IsSuccess() {
			told.Message, told.Reason = status.Message(), v1.PodReasonSchedulingGated
			return nil
		}
	}
	state := framework.NewCycleState()
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	result, status, rejecting := made.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		fail(status, nodes, told)
		return nil
	}
	possible := []fwk.NodeInfo{}
	for _, node := range nodes {
		info, err := made.SnapshotSharedLister().NodeInfos().Get(node.Name)
		if err != nil {
			return err
		}
		verdict := status
		if status.IsSuccess() && !result.AllNodes() && !result.NodeNames.Has(node.Name) {
			verdict = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", rejecting.UnsortedList()))
		} else if status.IsSuccess() {
			verdict = made.RunFilterPluginsWithNominatedPods(ctx, state, pod, info)
		}
		if verdict.Code() == fwk.Error {
			fail(verdict, nodes, told)
			return nil
		}
		if verdict.IsSuccess() {
			told.Nodes[node.Name] = []string{}
			continue
		}
		told.Nodes[node.Name] = verdict.Reasons()
		diagnosis.NodeToStatus.Set(node.Name, verdict)
		if verdict.Code() == fwk.Unschedulable {
			possible = append(possible, info)
		}
	}
	if diagnosis.NodeToStatus.Len() == len(nodes) {
		if !status.IsSuccess() {
			diagnosis.PreFilterMsg = status.Message()
		}
		told.Message = (&framework.FitError{Pod: pod, NumAllNodes: len(nodes), Diagnosis: diagnosis}).Error()
		told.Reason = v1.PodReasonUnschedulable
	}
	if preempt {
		return offer(ctx, preemption, factory, state, pod, possible, told)
	}
	return nil
}

// fail tells of an error on one node, which ends the attempt: the pod gets no other node either.
func fail(status *fwk.Status, nodes []*v1.Node, told *answer) {
	told.Message, told.Reason = status.AsError().Error(), v1.PodReasonSchedulerError
	for _, node := range nodes {
		told.Nodes[node.Name] = []string{told.Message}
	}
}

// offer tells the victims that the scheduler's preemption would choose on each node; the message, why it chooses none.
func offer(ctx context.Context, preemption *defaultpreemption.DefaultPreemption, factory *heldFactory, state fwk.CycleState, pod *v1.Pod, possible []fwk.NodeInfo, told *answer) error {
	if told.Message == "" || told.Reason != v1.PodReasonUnschedulable {
		return nil
	}
	if eligible, why := preemption.PodEligibleToPreemptOthers(ctx, pod, nil); !eligible {
		told.Message += " preemption: " + why
		return nil
	}
	budgets, err := factory.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	told.Victims = map[string]victims{}
	against := framework.NewDefaultNodeToStatus()
	against.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
	for _, info := range possible {
		pods, violations, status := preemption.SelectVictimsOnNode(ctx, state.Clone(), pod, info.Snapshot(), append([]*policy.PodDisruptionBudget{}, budgets...))
		if !status.IsSuccess() {
			against.Set(info.Node().Name, status)
		} else if len(pods) > 0 {
			chosen := victims{Violations: violations}
			for _, one := range pods {
				chosen.Pods = append(chosen.Pods, string(one.UID))
			}
			told.Victims[info.Node().Name] = chosen
		}
	}
	if len(told.Victims) == 0 {
		diagnosis := framework.Diagnosis{NodeToStatus: against}
		told.Message += " preemption: " + (&framework.FitError{Pod: pod, NumAllNodes: len(told.Nodes), Diagnosis: diagnosis}).Error()
	}
	return nil
}

func run() error {
	gates := flag.String("feature-gates", "", "features of Kubernetes to turn on or off: name=true,...")
	flag.Parse()
	if err := utilfeature.DefaultMutableFeatureGate.Set(*gates); err != nil {
		return err
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	metrics.Register()
	defaults, err := latest.Default()
	if err != nil {
		return err
	}
	shared := &scheduler{
		profile:  defaults.Profiles[0],
		client:   fake.NewSimpleClientset(),
		recorder: metrics.NewMetricsAsyncRecorder(1000, time.Second, make(chan struct{})),
		decoder:  legacyscheme.Codecs.UniversalDeserializer(),
	}
	lines, answers := make(chan []byte), make(chan answer)
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for line := range lines {
				var asked request
				if err := json.Unmarshal(line, &asked); err != nil {
					answers <- answer{Error: err.Error()}
					continue
				}
				answers <- shared.answer(asked)
			}
		})
	}
	done := make(chan error)
	go func() {
		output := bufio.NewWriter(os.Stdout)
		encoder := json.NewEncoder(output)
		for told := range answers {
			if err := encoder.Encode(told); err != nil {
				done <- err
				return
			}
			if err := output.Flush(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		if len(line) > 1 {
			lines <- line
		}
		if err != nil {
			break
		}
	}
	close(lines)
	working.Wait()
	close(answers)
	return <-done
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
