package script

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	election "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	lock "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// Method is what a step calls. New messages are nil where the path is not one that we know.
type Method struct {
	Path        string
	Streams     bool // any number of answers
	Sends       bool // any number of requests
	NewRequest  func() proto.Message
	NewResponse func() proto.Message
}

func unary[Q, R any, PQ message[Q], PR message[R]](path string) Method {
	return Method{
		Path:        path,
		NewRequest:  func() proto.Message { return PQ(new(Q)) },
		NewResponse: func() proto.Message { return PR(new(R)) },
	}
}

type message[T any] interface {
	*T
	proto.Message
}

func streaming(m Method) Method {
	m.Streams = true
	return m
}

func bidirectional(m Method) Method {
	m.Streams, m.Sends = true, true
	return m
}

// methods maps the first word of a step to what it calls.
var methods = map[string]Method{
	"Range":         unary[pb.RangeRequest, pb.RangeResponse]("/etcdserverpb.KV/Range"),
	"RangeStream":   streaming(unary[pb.RangeRequest, pb.RangeStreamResponse]("/etcdserverpb.KV/RangeStream")),
	"Put":           unary[pb.PutRequest, pb.PutResponse]("/etcdserverpb.KV/Put"),
	"DeleteRange":   unary[pb.DeleteRangeRequest, pb.DeleteRangeResponse]("/etcdserverpb.KV/DeleteRange"),
	"Txn":           unary[pb.TxnRequest, pb.TxnResponse]("/etcdserverpb.KV/Txn"),
	"Compact":       unary[pb.CompactionRequest, pb.CompactionResponse]("/etcdserverpb.KV/Compact"),
	"HashKV":        unary[pb.HashKVRequest, pb.HashKVResponse]("/etcdserverpb.Maintenance/HashKV"),
	"Alarm":         unary[pb.AlarmRequest, pb.AlarmResponse]("/etcdserverpb.Maintenance/Alarm"),
	"Status":        unary[pb.StatusRequest, pb.StatusResponse]("/etcdserverpb.Maintenance/Status"),
	"MemberList":    unary[pb.MemberListRequest, pb.MemberListResponse]("/etcdserverpb.Cluster/MemberList"),
	"MemberAdd":     unary[pb.MemberAddRequest, pb.MemberAddResponse]("/etcdserverpb.Cluster/MemberAdd"),
	"MemberRemove":  unary[pb.MemberRemoveRequest, pb.MemberRemoveResponse]("/etcdserverpb.Cluster/MemberRemove"),
	"MemberUpdate":  unary[pb.MemberUpdateRequest, pb.MemberUpdateResponse]("/etcdserverpb.Cluster/MemberUpdate"),
	"MemberPromote": unary[pb.MemberPromoteRequest, pb.MemberPromoteResponse]("/etcdserverpb.Cluster/MemberPromote"),
	"Defragment":    unary[pb.DefragmentRequest, pb.DefragmentResponse]("/etcdserverpb.Maintenance/Defragment"),
	"Hash":          unary[pb.HashRequest, pb.HashResponse]("/etcdserverpb.Maintenance/Hash"),
	"Snapshot":      streaming(unary[pb.SnapshotRequest, pb.SnapshotResponse]("/etcdserverpb.Maintenance/Snapshot")),
	"MoveLeader":    unary[pb.MoveLeaderRequest, pb.MoveLeaderResponse]("/etcdserverpb.Maintenance/MoveLeader"),
	"Downgrade":     unary[pb.DowngradeRequest, pb.DowngradeResponse]("/etcdserverpb.Maintenance/Downgrade"),
	"HealthList":    unary[health.HealthListRequest, health.HealthListResponse]("/grpc.health.v1.Health/List"),
	"HealthWatch":   streaming(unary[health.HealthCheckRequest, health.HealthCheckResponse]("/grpc.health.v1.Health/Watch")),
	"HealthCheck":   unary[health.HealthCheckRequest, health.HealthCheckResponse]("/grpc.health.v1.Health/Check"),

	"LeaseGrant":      unary[pb.LeaseGrantRequest, pb.LeaseGrantResponse]("/etcdserverpb.Lease/LeaseGrant"),
	"LeaseRevoke":     unary[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse]("/etcdserverpb.Lease/LeaseRevoke"),
	"LeaseTimeToLive": unary[pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse]("/etcdserverpb.Lease/LeaseTimeToLive"),
	"LeaseLeases":     unary[pb.LeaseLeasesRequest, pb.LeaseLeasesResponse]("/etcdserverpb.Lease/LeaseLeases"),
	"LeaseKeepAlive":  bidirectional(unary[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]("/etcdserverpb.Lease/LeaseKeepAlive")),

	"Watch": bidirectional(unary[pb.WatchRequest, pb.WatchResponse]("/etcdserverpb.Watch/Watch")),

	"Lock":   unary[lock.LockRequest, lock.LockResponse]("/v3lockpb.Lock/Lock"),
	"Unlock": unary[lock.UnlockRequest, lock.UnlockResponse]("/v3lockpb.Lock/Unlock"),

	"AuthEnable":           unary[pb.AuthEnableRequest, pb.AuthEnableResponse]("/etcdserverpb.Auth/AuthEnable"),
	"AuthDisable":          unary[pb.AuthDisableRequest, pb.AuthDisableResponse]("/etcdserverpb.Auth/AuthDisable"),
	"AuthStatus":           unary[pb.AuthStatusRequest, pb.AuthStatusResponse]("/etcdserverpb.Auth/AuthStatus"),
	"Authenticate":         unary[pb.AuthenticateRequest, pb.AuthenticateResponse]("/etcdserverpb.Auth/Authenticate"),
	"UserAdd":              unary[pb.AuthUserAddRequest, pb.AuthUserAddResponse]("/etcdserverpb.Auth/UserAdd"),
	"UserGet":              unary[pb.AuthUserGetRequest, pb.AuthUserGetResponse]("/etcdserverpb.Auth/UserGet"),
	"UserList":             unary[pb.AuthUserListRequest, pb.AuthUserListResponse]("/etcdserverpb.Auth/UserList"),
	"UserDelete":           unary[pb.AuthUserDeleteRequest, pb.AuthUserDeleteResponse]("/etcdserverpb.Auth/UserDelete"),
	"UserChangePassword":   unary[pb.AuthUserChangePasswordRequest, pb.AuthUserChangePasswordResponse]("/etcdserverpb.Auth/UserChangePassword"),
	"UserGrantRole":        unary[pb.AuthUserGrantRoleRequest, pb.AuthUserGrantRoleResponse]("/etcdserverpb.Auth/UserGrantRole"),
	"UserRevokeRole":       unary[pb.AuthUserRevokeRoleRequest, pb.AuthUserRevokeRoleResponse]("/etcdserverpb.Auth/UserRevokeRole"),
	"RoleAdd":              unary[pb.AuthRoleAddRequest, pb.AuthRoleAddResponse]("/etcdserverpb.Auth/RoleAdd"),
	"RoleGet":              unary[pb.AuthRoleGetRequest, pb.AuthRoleGetResponse]("/etcdserverpb.Auth/RoleGet"),
	"RoleList":             unary[pb.AuthRoleListRequest, pb.AuthRoleListResponse]("/etcdserverpb.Auth/RoleList"),
	"RoleDelete":           unary[pb.AuthRoleDeleteRequest, pb.AuthRoleDeleteResponse]("/etcdserverpb.Auth/RoleDelete"),
	"RoleGrantPermission":  unary[pb.AuthRoleGrantPermissionRequest, pb.AuthRoleGrantPermissionResponse]("/etcdserverpb.Auth/RoleGrantPermission"),
	"RoleRevokePermission": unary[pb.AuthRoleRevokePermissionRequest, pb.AuthRoleRevokePermissionResponse]("/etcdserverpb.Auth/RoleRevokePermission"),

	"Campaign": unary[election.CampaignRequest, election.CampaignResponse]("/v3electionpb.Election/Campaign"),
	"Proclaim": unary[election.ProclaimRequest, election.ProclaimResponse]("/v3electionpb.Election/Proclaim"),
	"Leader":   unary[election.LeaderRequest, election.LeaderResponse]("/v3electionpb.Election/Leader"),
	"Observe":  streaming(unary[election.LeaderRequest, election.LeaderResponse]("/v3electionpb.Election/Observe")),
	"Resign":   unary[election.ResignRequest, election.ResignResponse]("/v3electionpb.Election/Resign"),
}
